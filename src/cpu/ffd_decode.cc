#include "cpu/ffd_decode.h"

#include "cpu/ffd_head.h"
#include "cpu/ffd_layout.h"
#include "cpu/ffd_scan.h"

namespace longdecode::cpu {
namespace {

class FfdDecode final : public DecodeKernel {
 public:
  FfdDecode(const DecodeDesc& desc, const DeviceInfo& device)
      : desc_(desc),
        layout_(desc),
        scan_tiles_(select_scan_kernel(device).scan_tiles),
        num_threads_(device.num_threads) {}

  int64_t workspace_bytes() const override { return layout_.workspace_bytes(); }

  // Every run writes what it reads: nothing to prepare.
  Status init(void* /*workspace*/, StreamHandle /*stream*/) override { return {}; }

  Status run(const DecodeArgs& args, void* workspace, StreamHandle /*stream*/) override {
    FfdLayout layout = layout_;
    layout.bind(workspace);
    const FfdRun run{desc_, args, layout, scan_tiles_};
    const int64_t num_heads = int64_t{args.batch.batch} * desc_.format.num_kv_heads;
    const int64_t num_parts = num_heads * layout.max_splits();
    const auto head = [&](int64_t head_idx) {
      return FfdHead(run, static_cast<int32_t>(head_idx / desc_.format.num_kv_heads),
                     static_cast<int32_t>(head_idx % desc_.format.num_kv_heads));
    };
    const auto for_part = [&](int64_t part, void (FfdHead::*phase)(int32_t) const) {
      const FfdHead part_head = head(part / layout.max_splits());
      const auto split = static_cast<int32_t>(part % layout.max_splits());
      if (split < part_head.num_splits()) (part_head.*phase)(split);
    };
    // Each loop ends with a barrier; the next one reads what it wrote.
#pragma omp parallel num_threads(num_threads_)
    {
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < num_heads; ++i) head(i).pack_queries();
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < num_parts; ++i) for_part(i, &FfdHead::attend_always);
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < num_parts; ++i) for_part(i, &FfdHead::attend_candidates);
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < num_heads; ++i) head(i).finish();
    }
    return {};
  }

 private:
  const DecodeDesc desc_;
  const FfdLayout layout_;
  const ScanTiles scan_tiles_;
  const int32_t num_threads_;
};

}  // namespace

std::unique_ptr<DecodeKernel> make_ffd_decode(const DecodeDesc& desc, const DeviceInfo& device) {
  return std::make_unique<FfdDecode>(desc, device);
}

int64_t ffd_tokens_per_split(const DecodeDesc& desc) { return FfdLayout(desc).tokens_per_split(); }

const char* ffd_isa(const DeviceInfo& device) { return select_scan_kernel(device).isa; }

}  // namespace longdecode::cpu
