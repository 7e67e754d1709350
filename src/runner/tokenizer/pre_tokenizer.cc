#define PCRE2_CODE_UNIT_WIDTH 8
#include "runner/tokenizer/pre_tokenizer.h"

#include <pcre2.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"
#include "runner/tokenizer/utf8.h"

namespace longdecode::runner {
namespace {

// White space of Unicode, for use inside [...]: PCRE2's \s also has U+180E, which is a format
// character since Unicode 6.3 and no white space to the tokenizers that models are trained with.
#define LD_SPACE R"(\x09-\x0d\x{85}\p{Z})"
#define LD_SPACES_NOT_BEFORE_WORD "[" LD_SPACE "]+(?![^" LD_SPACE "])|[" LD_SPACE "]+"
#define LD_CONTRACTIONS "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"

constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" LD_SPACE
                              R"(\p{L}\p{N}]+|)" LD_SPACES_NOT_BEFORE_WORD;
constexpr const char* kLlama3 =
    LD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^)" LD_SPACE
                    R"(\p{L}\p{N}]+[\r\n]*|[)" LD_SPACE R"(]*[\r\n]+|)" LD_SPACES_NOT_BEFORE_WORD;
constexpr const char* kQwen2 =
    LD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^)" LD_SPACE
                    R"(\p{L}\p{N}]+[\r\n]*|[)" LD_SPACE R"(]*[\r\n]+|)" LD_SPACES_NOT_BEFORE_WORD;

#undef LD_SPACE
#undef LD_SPACES_NOT_BEFORE_WORD
#undef LD_CONTRACTIONS

constexpr size_t kMaxShownBytes = 64;  // of a name from a file, in a message

struct Spec {
  const char* name;
  std::vector<const char*> stages;  // each splits the pieces of the one before
  bool ignores_merges;
  bool adds_bos;
};

const std::vector<Spec>& specs() {
  static const std::vector<Spec> kSpecs = {
      {"smollm", {kDigit, kGpt2}, false, false},
      {"gpt-2", {kGpt2}, false, false},
      {"llama-bpe", {kLlama3}, true, true},
      {"qwen2", {kQwen2}, false, false},
  };
  return kSpecs;
}

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDeleter {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};
struct ContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, CodeDeleter>;

Result<Code> compile(const char* pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                          &error, &offset, nullptr));
  if (code == nullptr) {
    return make_status(StatusCode::kInternal, "pre-tokenizer: PCRE2 error {} at offset {} of {}",
                       error, offset, pattern);
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // a failure only means slower matching
  return code;
}

// Splits one well-formed UTF-8 text at the matches of one expression.
class Splitter {
 public:
  explicit Splitter(const pcre2_code* code)
      : code_(code),
        match_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    // A run of n spaces may cost n backtracks; the default limit would stop that at 10 million.
    if (context_ != nullptr) pcre2_set_match_limit(context_.get(), UINT32_MAX);
  }

  // Text between matches is a piece, too.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const {
    size_t pos = 0;
    while (pos < text.size()) {
      const auto [begin, end] = next_match(text, pos);
      if (begin > pos) pieces.push_back(text.substr(pos, begin - pos));
      if (end > begin) pieces.push_back(text.substr(begin, end - begin));
      pos = end;
    }
  }

 private:
  // The rest of the text counts as unmatched when PCRE2 gives up (it runs out of memory).
  std::pair<size_t, size_t> next_match(std::string_view text, size_t pos) const {
    if (match_ != nullptr) {
      int count = match(text, pos, PCRE2_NO_UTF_CHECK);
      if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
        count = match(text, pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
      }
      const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match_.get());
      if (count > 0 && offsets[1] > pos) return {offsets[0], offsets[1]};
    }
    return {text.size(), text.size()};
  }

  int match(std::string_view text, size_t pos, uint32_t options) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), pos, options,
                       match_.get(), context_.get());
  }

  const pcre2_code* code_;
  std::unique_ptr<pcre2_match_data, MatchDeleter> match_;
  std::unique_ptr<pcre2_match_context, ContextDeleter> context_;
};

// Calls on_valid for each maximal run of well-formed UTF-8 and on_invalid for each run between.
template <typename OnValid, typename OnInvalid>
void for_each_run(std::string_view text, const OnValid& on_valid, const OnInvalid& on_invalid) {
  while (!text.empty()) {
    const size_t valid = utf8_valid_prefix(text);
    if (valid > 0) on_valid(text.substr(0, valid));
    size_t end = valid;
    while (end < text.size() && utf8_sequence_bytes(text, end) == 0) ++end;
    if (end > valid) on_invalid(text.substr(valid, end - valid));
    text.remove_prefix(end);
  }
}

}  // namespace

struct PreTokenizer::Impl {
  const Spec* spec = nullptr;
  std::vector<Code> stages;
};

Result<PreTokenizer> PreTokenizer::create(std::string_view pre) {
  const auto spec = std::find_if(specs().begin(), specs().end(),
                                 [pre](const Spec& candidate) { return candidate.name == pre; });
  if (spec == specs().end()) {
    std::string names;
    for (const Spec& known : specs())
      names += (names.empty() ? "" : ", ") + std::string(known.name);
    return unsupported("tokenizer.ggml.pre is \"{}\"; this build knows {}",
                       pre.substr(0, kMaxShownBytes), names);
  }
  auto impl = std::make_unique<Impl>();
  impl->spec = &*spec;
  for (const char* pattern : spec->stages) {
    Result<Code> code = compile(pattern);
    if (!code.ok()) return code.status();
    impl->stages.push_back(std::move(code).value());
  }
  return PreTokenizer(std::move(impl));
}

PreTokenizer::PreTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

bool PreTokenizer::ignores_merges() const { return impl_->spec->ignores_merges; }
bool PreTokenizer::adds_bos() const { return impl_->spec->adds_bos; }

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  std::vector<Splitter> splitters;
  for (const Code& code : impl_->stages) splitters.emplace_back(code.get());
  std::vector<std::string_view> pieces;
  std::vector<std::string_view> from;
  std::vector<std::string_view> to;
  const auto split_valid = [&](std::string_view run) {
    from.assign(1, run);
    for (const Splitter& splitter : splitters) {
      to.clear();
      for (std::string_view piece : from) splitter.split(piece, to);
      from.swap(to);
    }
    pieces.insert(pieces.end(), from.begin(), from.end());
  };
  for_each_run(text, split_valid, [&](std::string_view run) { pieces.push_back(run); });
  return pieces;
}

}  // namespace longdecode::runner
