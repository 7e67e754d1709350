// The model and the sessions whose prompt caches are fuzzed.
#ifndef LONGDECODE_TESTS_FUZZ_FUZZ_MODEL_H_
#define LONGDECODE_TESTS_FUZZ_FUZZ_MODEL_H_

#include <cstdint>
#include <memory>

#include "runner/model/session.h"
#include "tests/support/tiny_llama.h"

namespace longdecode::fuzz {

inline constexpr uint64_t kModelHash = 0x1234;

inline std::shared_ptr<const runner::Model> fuzz_model() {
  tests::TinyLlama tiny;
  tiny.hidden_dim = 64;
  tiny.num_q_heads = 1;
  tiny.ffn_dim = 32;
  tiny.vocab_size = 40;
  auto file = runner::GgufFile::from_bytes(tiny.writer().finish(), "tiny");
  return runner::Model::from_file(std::move(file).value()).value();
}

inline runner::Session fuzz_session(std::shared_ptr<const runner::Model> model, Method method) {
  runner::SessionOptions options;
  options.method = method;
  options.ffd = {.delta = 1.0f, .sink_tokens = 16, .recent_tokens = 16};
  options.context_len = 256;
  options.page_size = 64;
  options.device.num_threads = 1;
  return runner::Session::create(std::move(model), options).value();
}

}  // namespace longdecode::fuzz

#endif  // LONGDECODE_TESTS_FUZZ_FUZZ_MODEL_H_
