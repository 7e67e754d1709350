// A workload in a KvCache, by the same calls that an engine makes, and the cache seen from the
// host.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_CACHE_FILL_H_
#define LONGDECODE_BENCHMARKS_HARNESS_CACHE_FILL_H_

#include <cstdint>
#include <vector>

#include "base/backend.h"
#include "benchmarks/harness/workload.h"
#include "longdecode/kv_cache.h"

namespace longdecode::bench {

// A cache of one layer that holds all tokens of `work`: the last query_len of each sequence are the
// step that is reserved and appended but not committed, so cache.step() is what a decode step runs
// on.
Result<KvCache> make_filled_cache(const Workload& work, const KvFormat& format,
                                  const Backend& backend, const DeviceInfo& device);

// Bytes of that cache's pools and rings.
int64_t cache_bytes(const KvFormat& format, int32_t batch, int64_t kv_len);

// A layer and its step in host memory: as they are where the host can read the device's memory,
// else (or when `always_copy`) copies.
class HostLayer {
 public:
  static Result<HostLayer> create(const KvLayerView& layer, const BatchView& step,
                                  const Backend& backend, const DeviceInfo& device,
                                  bool always_copy = false);
  const KvLayerView& layer() const { return layer_; }
  const BatchView& step() const { return step_; }

 private:
  KvLayerView layer_;
  BatchView step_;
  std::vector<HostBuffer> buffers_;
};

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_CACHE_FILL_H_
