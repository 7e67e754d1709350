#include "runner/prompt_cache/model_hash.h"

#include <algorithm>
#include <span>
#include <vector>

#include "runner/prompt_cache/xxh64.h"

namespace longdecode::runner {

uint64_t model_hash(const GgufFile& file, int32_t num_threads) {
  constexpr size_t kBlockBytes = 4 << 20;
  const std::span<const uint8_t> bytes = file.bytes();
  std::vector<uint64_t> hashes((bytes.size() + kBlockBytes - 1) / kBlockBytes);
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (size_t i = 0; i < hashes.size(); ++i) {
    const size_t begin = i * kBlockBytes;
    hashes[i] = Xxh64::hash(bytes.subspan(begin, std::min(kBlockBytes, bytes.size() - begin)));
  }
  return Xxh64::hash({reinterpret_cast<const uint8_t*>(hashes.data()), 8 * hashes.size()});
}

}  // namespace longdecode::runner
