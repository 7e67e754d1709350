#include "runner/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "runner/tokenizer/bpe_merger.h"
#include "runner/tokenizer/byte_alphabet.h"
#include "runner/tokenizer/pre_tokenizer.h"

namespace longdecode::runner {
namespace {

constexpr size_t kMaxShownBytes = 64;  // of a name from a file, in a message

// Control tokens that end a turn or a text, by the names that model families use.
constexpr std::string_view kEndTokens[] = {"<|endoftext|>",   "<|im_end|>", "<|eot_id|>",
                                           "<|end_of_text|>", "<|eom_id|>", "<|end|>"};

// A token that is looked for in the text itself.
struct SpecialToken {
  std::string_view text;
  int32_t id = 0;
  bool user_defined = false;  // matches even where special tokens are not parsed
};

Status check_id(const char* key, int64_t id, size_t vocab_size) {
  if (id >= -1 && id < static_cast<int64_t>(vocab_size)) return {};
  return data_loss("{} is {}; the vocabulary has {} tokens", key, id, vocab_size);
}

Status check(const TokenizerData& data) {
  if (data.model != "gpt2") {
    return unsupported("tokenizer.ggml.model is \"{}\"; this build has gpt2 (byte-level BPE)",
                       data.model.substr(0, kMaxShownBytes));
  }
  if (data.tokens.empty()) return data_loss("tokenizer.ggml.tokens is empty");
  if (data.tokens.size() > size_t{std::numeric_limits<int32_t>::max()}) {
    return data_loss("tokenizer.ggml.tokens has {} entries; ids are 32-bit", data.tokens.size());
  }
  if (data.merges.size() > size_t{std::numeric_limits<int32_t>::max()}) {
    return data_loss("tokenizer.ggml.merges has {} entries; ranks are 32-bit", data.merges.size());
  }
  if (!data.types.empty() && data.types.size() != data.tokens.size()) {
    return data_loss("tokenizer.ggml.token_type has {} entries; tokenizer.ggml.tokens has {}",
                     data.types.size(), data.tokens.size());
  }
  LD_RETURN_IF_ERROR(check_id("tokenizer.ggml.bos_token_id", data.bos_id, data.tokens.size()));
  LD_RETURN_IF_ERROR(check_id("tokenizer.ggml.eos_token_id", data.eos_id, data.tokens.size()));
  LD_RETURN_IF_ERROR(check_id("tokenizer.ggml.eot_token_id", data.eot_id, data.tokens.size()));
  if (data.add_bos.value_or(false) && data.bos_id < 0) {
    return data_loss("tokenizer.ggml.add_bos_token is set; tokenizer.ggml.bos_token_id is missing");
  }
  return {};
}

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerData from, PreTokenizer splitter)
      : data(std::move(from)), pre_tokenizer(std::move(splitter)) {}

  TokenizerData data;
  PreTokenizer pre_tokenizer;
  BpeMerger merger;
  std::unordered_map<std::string_view, int32_t> token_ids;  // views of data.tokens
  std::array<int32_t, 256> byte_ids = {};                   // -1: no token writes this byte
  std::vector<SpecialToken> specials;                       // by first byte, then longest first
  std::array<int32_t, 257> special_begin = {};  // specials whose first byte is b: [b] .. [b + 1]
  std::vector<bool> ends_generation;

  TokenType type(int32_t id) const {
    return data.types.empty() ? TokenType::kNormal : static_cast<TokenType>(data.types[id]);
  }
  void index_bytes();
  void index_specials();
  void index_end_tokens();
  const SpecialToken* special_at(std::string_view text, size_t pos, bool parse_special) const;
  void encode_text(std::string_view text, Encoding& encoding) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& symbols,
                    Encoding& encoding) const;
};

void Tokenizer::Impl::index_bytes() {
  for (int32_t byte = 0; byte < 256; ++byte) {
    const auto found = token_ids.find(byte_to_alphabet(static_cast<uint8_t>(byte)));
    byte_ids[byte] = found == token_ids.end() ? -1 : found->second;
  }
}

void Tokenizer::Impl::index_specials() {
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const int32_t id = static_cast<int32_t>(i);
    const TokenType kind = type(id);
    const bool user_defined = kind == TokenType::kUserDefined;
    if (data.tokens[i].empty()) continue;
    if (user_defined || kind == TokenType::kControl || kind == TokenType::kUnknown) {
      specials.push_back({data.tokens[i], id, user_defined});
    }
  }
  const auto first_byte = [](const SpecialToken& token) {
    return static_cast<uint8_t>(token.text[0]);
  };
  std::sort(specials.begin(), specials.end(), [&](const SpecialToken& a, const SpecialToken& b) {
    if (first_byte(a) != first_byte(b)) return first_byte(a) < first_byte(b);
    if (a.text.size() != b.text.size()) return a.text.size() > b.text.size();
    return a.id < b.id;
  });
  for (const SpecialToken& token : specials) ++special_begin[first_byte(token) + 1];
  for (size_t byte = 0; byte < 256; ++byte) special_begin[byte + 1] += special_begin[byte];
}

void Tokenizer::Impl::index_end_tokens() {
  ends_generation.resize(data.tokens.size(), false);
  if (data.eos_id >= 0) ends_generation[data.eos_id] = true;
  if (data.eot_id >= 0) ends_generation[data.eot_id] = true;
  for (std::string_view text : kEndTokens) {
    const auto found = token_ids.find(text);
    if (found == token_ids.end() || type(found->second) == TokenType::kNormal) continue;
    ends_generation[found->second] = true;
  }
}

const SpecialToken* Tokenizer::Impl::special_at(std::string_view text, size_t pos,
                                                bool parse_special) const {
  const uint8_t byte = static_cast<uint8_t>(text[pos]);
  for (int32_t i = special_begin[byte]; i < special_begin[byte + 1]; ++i) {
    const SpecialToken& token = specials[i];
    if (!parse_special && !token.user_defined) continue;
    if (text.substr(pos, token.text.size()) == token.text) return &token;
  }
  return nullptr;
}

void Tokenizer::Impl::encode_piece(std::string_view piece, std::vector<int32_t>& symbols,
                                   Encoding& encoding) const {
  if (pre_tokenizer.ignores_merges()) {
    std::string written;
    for (char c : piece) written += byte_to_alphabet(static_cast<uint8_t>(c));
    const auto found = token_ids.find(written);
    if (found != token_ids.end() && type(found->second) == TokenType::kNormal) {
      encoding.ids.push_back(found->second);
      return;
    }
  }
  symbols.clear();
  for (char c : piece) symbols.push_back(byte_ids[static_cast<uint8_t>(c)]);
  const size_t begin = encoding.ids.size();
  merger.merge(symbols, encoding.ids);
  const auto end =
      std::remove(encoding.ids.begin() + static_cast<int64_t>(begin), encoding.ids.end(), -1);
  encoding.num_dropped_bytes += encoding.ids.end() - end;
  encoding.ids.erase(end, encoding.ids.end());
}

void Tokenizer::Impl::encode_text(std::string_view text, Encoding& encoding) const {
  std::vector<int32_t> symbols;
  for (std::string_view piece : pre_tokenizer.split(text)) encode_piece(piece, symbols, encoding);
}

Result<Tokenizer> Tokenizer::create(TokenizerData data) {
  LD_RETURN_IF_ERROR(check(data));
  LD_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::create(data.pre));
  auto impl = std::make_unique<Impl>(std::move(data), std::move(pre_tokenizer));
  impl->token_ids.reserve(impl->data.tokens.size());
  for (size_t i = 0; i < impl->data.tokens.size(); ++i) {
    impl->token_ids.emplace(impl->data.tokens[i], static_cast<int32_t>(i));
  }
  LD_ASSIGN_OR_RETURN(impl->merger, BpeMerger::create(impl->token_ids, impl->data.merges));
  impl->index_bytes();
  impl->index_specials();
  impl->index_end_tokens();
  return Tokenizer(std::move(impl));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  Encoding encoding;
  if (options.add_bos && adds_bos()) encoding.ids.push_back(bos_id());
  size_t text_begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const SpecialToken* special = impl_->special_at(text, pos, options.parse_special);
    if (special == nullptr) {
      ++pos;
      continue;
    }
    impl_->encode_text(text.substr(text_begin, pos - text_begin), encoding);
    encoding.ids.push_back(special->id);
    pos += special->text.size();
    text_begin = pos;
  }
  impl_->encode_text(text.substr(text_begin), encoding);
  return encoding;
}

std::string Tokenizer::decode(int32_t id, bool show_special) const {
  if (id < 0 || id >= vocab_size()) return {};
  const std::string& text = impl_->data.tokens[id];
  switch (impl_->type(id)) {
    case TokenType::kControl:
    case TokenType::kUnknown:
    case TokenType::kUnused:
      return show_special ? text : std::string();
    case TokenType::kUserDefined:
      return text;
    default:
      return alphabet_to_bytes(text);
  }
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool show_special) const {
  std::string text;
  for (int32_t id : ids) text += decode(id, show_special);
  return text;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->data.tokens.size()); }
bool Tokenizer::adds_bos() const {
  return impl_->data.bos_id >= 0 && impl_->data.add_bos.value_or(impl_->pre_tokenizer.adds_bos());
}
int32_t Tokenizer::bos_id() const { return static_cast<int32_t>(impl_->data.bos_id); }
int32_t Tokenizer::eos_id() const { return static_cast<int32_t>(impl_->data.eos_id); }

bool Tokenizer::is_end_of_generation(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->ends_generation[id];
}

int32_t Tokenizer::find_token(std::string_view text) const {
  const auto found = impl_->token_ids.find(text);
  return found == impl_->token_ids.end() ? -1 : found->second;
}

}  // namespace longdecode::runner
