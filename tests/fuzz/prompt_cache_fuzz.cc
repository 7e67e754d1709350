// Any bytes as a prompt cache, as they are and with a checksum that matches (no mutation finds that
// one): parsed, restored into a session, and that session goes on.
#include <cstdint>
#include <cstring>
#include <vector>

#include "runner/prompt_cache/layout.h"
#include "runner/prompt_cache/prompt_cache.h"
#include "tests/fuzz/fuzz_model.h"

namespace longdecode::fuzz {
namespace {

void use(const std::vector<uint8_t>& bytes) {
  static const auto model = fuzz_model();
  static runner::Session dense = fuzz_session(model, Method::kDense);
  static runner::Session ffd = fuzz_session(model, Method::kFfd);
  const auto cache = runner::PromptCache::parse(bytes, "fuzz");
  if (!cache.ok()) return;
  for (runner::Session* session : {&dense, &ffd}) {
    if (!cache->restore(cache->tokens(), kModelHash, session).ok()) continue;
    for (int i = 0; i < 2; ++i) {
      if (!session->decode(1).ok()) break;
    }
  }
}

}  // namespace
}  // namespace longdecode::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longdecode;
  std::vector<uint8_t> bytes(data, data + size);
  fuzz::use(bytes);
  if (size < runner::kChecksumBytes) return 0;
  const size_t body = size - runner::kChecksumBytes;
  const uint64_t checksum = runner::prompt_cache_checksum(std::span(bytes).first(body));
  std::memcpy(bytes.data() + body, &checksum, sizeof(checksum));
  fuzz::use(bytes);
  return 0;
}
