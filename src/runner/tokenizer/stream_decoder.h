// Text of a token stream, piece by piece, never cutting a character in two.
#ifndef LONGDECODE_RUNNER_TOKENIZER_STREAM_DECODER_H_
#define LONGDECODE_RUNNER_TOKENIZER_STREAM_DECODER_H_

#include <string>
#include <string_view>

namespace longdecode::runner {

class StreamDecoder {
 public:
  // Takes the bytes of the next token; returns what is complete so far. An incomplete UTF-8
  // sequence at the end (at most 3 bytes) is held back; bytes that can be no UTF-8 pass through.
  std::string push(std::string_view bytes);

  // What is still held back, at the end of the stream.
  std::string flush();

 private:
  std::string held_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_TOKENIZER_STREAM_DECODER_H_
