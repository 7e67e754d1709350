// Byte-level BPE (GPT-2) over the vocabulary of a GGUF file. Everything in the file is untrusted.
#ifndef LONGDECODE_RUNNER_TOKENIZER_TOKENIZER_H_
#define LONGDECODE_RUNNER_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "longdecode/status.h"

namespace longdecode::runner {

// Values of `tokenizer.ggml.token_type`.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// The tokenizer keys of a GGUF file.
struct TokenizerData {
  std::string model;  // tokenizer.ggml.model; "gpt2"
  std::string pre;    // tokenizer.ggml.pre
  std::vector<std::string>
      tokens;                  // [vocab_size], in the byte alphabet; special tokens as they are
  std::vector<int32_t> types;  // [vocab_size] TokenType, or empty: all normal
  std::vector<std::string> merges;  // "left right", by rank
  int64_t bos_id = -1;              // -1: none
  int64_t eos_id = -1;
  int64_t eot_id = -1;  // end of turn, where it is not eos
  std::optional<bool> add_bos;
};

struct EncodeOptions {
  // Control tokens written out in the text ("<|im_end|>") become the token; else they are text like
  // any other. User-defined tokens always match.
  bool parse_special = false;
  bool add_bos = true;  // where the model wants one
};

struct Encoding {
  std::vector<int32_t> ids;
  // Bytes that no token of this vocabulary can write; they are left out of ids.
  int64_t num_dropped_bytes = 0;
};

class Tokenizer {
 public:
  // kUnsupported for another tokenizer model or pre-tokenizer, kDataLoss for an empty vocabulary,
  // merges that name no token, or ids out of range.
  static Result<Tokenizer> create(TokenizerData data);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes; text that is not UTF-8 is encoded byte by byte.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The bytes that a token writes: nothing for control tokens unless show_special. An id that is
  // no token writes nothing.
  std::string decode(int32_t id, bool show_special = false) const;
  std::string decode(std::span<const int32_t> ids, bool show_special = false) const;

  int32_t vocab_size() const;
  bool adds_bos() const;
  int32_t bos_id() const;  // -1: none
  int32_t eos_id() const;  // -1: none
  // Tokens after which generation stops: eos, end of turn and the known control tokens of that
  // kind.
  bool is_end_of_generation(int32_t id) const;
  // The token whose text is exactly this, or -1.
  int32_t find_token(std::string_view text) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_TOKENIZER_TOKENIZER_H_
