// Splits text into the pieces that BPE merges never cross, by the regular expressions that a model
// was trained with. They are known by the name in `tokenizer.ggml.pre`; the expressions are those
// of llama.cpp (src/llama-vocab.cpp) and of the models' tokenizer.json files.
#ifndef LONGDECODE_RUNNER_TOKENIZER_PRE_TOKENIZER_H_
#define LONGDECODE_RUNNER_TOKENIZER_PRE_TOKENIZER_H_

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "longdecode/status.h"

namespace longdecode::runner {

class PreTokenizer {
 public:
  // kUnsupported, naming `pre` and the names that are known, for an unknown one.
  static Result<PreTokenizer> create(std::string_view pre);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // A piece that is itself a token is taken whole, without merging (Llama 3).
  bool ignores_merges() const;
  // Whether the model wants a BOS token where the file does not say.
  bool adds_bos() const;

  // Pieces in order; together they are the text. Bytes that are not UTF-8 form pieces of their own.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct Impl;
  explicit PreTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_TOKENIZER_PRE_TOKENIZER_H_
