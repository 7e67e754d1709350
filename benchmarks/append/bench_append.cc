// Appending bf16 keys and values to a two-plane cache (the keys are quantised on the way) and,
// beside it, to a plain one: 8 kv heads of 128, cold caches (flushed by 8 x the last-level cache).
// One JSON row per format on stdout; gbps counts the bytes of the keys.
//
//   bench_append [tokens (16384)] [threads (1)] [samples (7)] [bytes of the flush]
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/status_macros.h"
#include "benchmarks/harness/timing.h"
#include "benchmarks/harness/workload.h"
#include "longdecode/kv_cache.h"

namespace {

using namespace longdecode;  // NOLINT: a program

struct Options {
  int64_t num_tokens = 16384;
  int32_t num_threads = 1;
  int32_t num_samples = 7;
  int64_t flush_bytes = -1;  // default_flush_bytes
};

Status bench_format(const Options& options, KeyEncoding keys, const bench::Workload& work,
                    const DeviceInfo& device, bench::Timer& timer) {
  const bench::WorkloadSpec& spec = work.spec;
  KvCacheDesc desc;
  desc.format = KvFormat::gqa(keys, spec.dtype, spec.num_kv_heads, spec.key_dim, spec.page_size);
  desc.num_pages = static_cast<int32_t>(spec.kv_len / spec.page_size + 1);
  desc.max_kv_len = spec.kv_len;
  LD_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(desc, device));
  std::vector<double> times;
  for (int32_t i = 0; i <= options.num_samples; ++i) {
    LD_ASSIGN_OR_RETURN(const SequenceId sequence, cache.add_sequence());
    const auto num_new = static_cast<int32_t>(spec.kv_len);
    LD_RETURN_IF_ERROR(cache.reserve({&sequence, 1}, {&num_new, 1}));
    LD_ASSIGN_OR_RETURN(const double time_us, timer.sample_us([&](StreamHandle stream) {
      return cache.append(0, work.k, work.v, stream);
    }));
    // The first one touches the cache's memory for the first time.
    if (i > 0) times.push_back(time_us);
    LD_RETURN_IF_ERROR(cache.commit());
    LD_RETURN_IF_ERROR(cache.free_sequence(sequence));
  }
  const int64_t key_bytes =
      spec.kv_len * spec.num_kv_heads * spec.key_dim * dtype_bytes(spec.dtype);
  const double time_us = bench::median(times);
  fmt::print(
      "{{\"keys\": \"{}\", \"tokens\": {}, \"num_kv_heads\": {}, \"head_dim\": {}, \"threads\": "
      "{}, "
      "\"time_us\": {:.0f}, \"key_gbps\": {:.2f}, \"l2\": \"{}\"}}\n",
      keys == KeyEncoding::kTwoPlane ? "two-plane" : "plain", spec.kv_len, spec.num_kv_heads,
      spec.key_dim, options.num_threads, time_us, static_cast<double>(key_bytes) / time_us * 1e-3,
      timer.l2());
  return {};
}

Status bench_all(const Options& options) {
  LD_ASSIGN_OR_RETURN(DeviceInfo device, detect_device(DeviceType::kCpu));
  device.num_threads = options.num_threads;
  bench::WorkloadSpec spec;
  spec.kv_len = options.num_tokens;
  spec.softmax_scale = 0.088388f;
  LD_ASSIGN_OR_RETURN(const bench::Workload work, bench::make_workload(spec, options.num_threads));
  const int64_t flush_bytes =
      options.flush_bytes < 0 ? bench::default_flush_bytes(device) : options.flush_bytes;
  LD_ASSIGN_OR_RETURN(const auto timer, bench::make_timer(device, bench::Timing::kWall, flush_bytes,
                                                          int64_t{1} << 20));
  for (const KeyEncoding keys : {KeyEncoding::kTwoPlane, KeyEncoding::kPlain}) {
    LD_RETURN_IF_ERROR(bench_format(options, keys, work, device, *timer));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (argc > 1) options.num_tokens = std::atoll(argv[1]);
  if (argc > 2) options.num_threads = std::atoi(argv[2]);
  if (argc > 3) options.num_samples = std::atoi(argv[3]);
  if (argc > 4) options.flush_bytes = std::atoll(argv[4]);
  if (options.num_tokens < 1024 || options.num_threads < 1 || options.num_samples < 1) {
    fmt::print(stderr,
               "usage: bench_append [tokens >= 1024] [threads >= 1] [samples >= 1] [bytes]\n");
    return 2;
  }
  if (const Status status = bench_all(options); !status.ok()) {
    fmt::print(stderr, "{}\n", status.message());
    return 1;
  }
  return 0;
}
