#include "cuda/kernels/mla_decode/sm90/decode_kernel.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numbers>
#include <utility>

#include "base/integer_math.h"
#include "base/status_macros.h"
#include "cuda/host/decode_tensors.h"
#include "cuda/host/status.h"
#include "cuda/host/tensor_map.h"
#include "cuda/kernels/dense_stats/dense_stats.h"
#include "cuda/kernels/mla_decode/sm90/launch.h"

namespace longdecode::cuda::mla_sm90 {
namespace {

using Launch = cudaError_t (*)(const CUtensorMap&, const CUtensorMap&, const Params&, cudaStream_t);

template <int... kIndices>
constexpr std::array<Launch, kNumInstances> make_launches(std::integer_sequence<int, kIndices...>) {
  return {launch<kIndices>...};
}
constexpr std::array<Launch, kNumInstances> kLaunches =
    make_launches(std::make_integer_sequence<int, kNumInstances>());

// The instance with the fewest rows that holds all of them, else the one with the most.
int32_t instance_for(int32_t num_rows, bool is_f16) {
  int32_t best = -1;
  for (int32_t i = 0; i < kNumInstances; ++i) {
    if (kInstances[i].is_f16 != is_f16) continue;
    if (best >= 0 && kInstances[best].rows >= num_rows) break;
    best = i;
  }
  return best;
}

// Splits per sequence when `workers` CTAs share `batch` sequences: a power of two if that leaves
// at most 5% of the CTAs idle, because lengths often are powers of two.
int32_t strided_splits(int32_t workers, int32_t batch) {
  const int32_t splits = workers / batch;
  const int32_t power = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(splits)));
  return power * 20 >= splits * 19 ? power : splits;
}

constexpr int64_t kAlignment = 256;

int64_t partials_bytes(const RunShape& shape) {
  if (!shape.may_split) return 0;
  return 2 * int64_t{shape.num_workers} * shape.num_row_blocks *
         partial_bytes(kInstances[shape.instance].rows);
}

class MlaDecodeKernel final : public DecodeKernel {
 public:
  MlaDecodeKernel(const DecodeDesc& desc, const DeviceInfo& device) : desc_(desc), device_(device) {
    const auto make_room = [&](int32_t batch, int32_t query_len) {
      const RunShape shape = run_shape(desc, device, batch, query_len);
      partials_bytes_ = std::max(partials_bytes_, round_up(partials_bytes(shape), kAlignment));
    };
    for (int32_t query_len = 1; query_len <= desc.max_query_len; ++query_len) {
      // Small batches differ in their workers; of the others the largest has the most.
      const int32_t small = std::min(desc.max_batch, kSmallBatch);
      for (int32_t batch = 1; batch <= small; ++batch) make_room(batch, query_len);
      make_room(desc.max_batch, query_len);
    }
  }

  int64_t workspace_bytes() const override { return partials_bytes_ + kAlignment; }

  // No run yet, and no partial bears a tag.
  Status init(void* workspace, StreamHandle stream) override {
    const DeviceGuard guard(device_.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    return cuda_status(
        cudaMemsetAsync(workspace, 0, workspace_bytes(), static_cast<cudaStream_t>(stream)),
        "init of the workspace of mla_decode");
  }

  Status run(const DecodeArgs& args, void* workspace, StreamHandle stream_handle) override {
    if (args.batch.batch == 0) return Status();
    const auto stream = static_cast<cudaStream_t>(stream_handle);
    const DeviceGuard guard(device_.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    const RunShape shape = run_shape(desc_, device_, args.batch.batch, args.query_len);
    CUtensorMap k_map, k_chunk_map;
    LD_RETURN_IF_ERROR(encode_key_map(args, kKeyDim / 64, k_map));
    LD_RETURN_IF_ERROR(encode_key_map(args, 1, k_chunk_map));
    const Params params = make_params(args, shape, workspace);
    LD_RETURN_IF_ERROR(cuda_status(kLaunches[shape.instance](k_map, k_chunk_map, params, stream),
                                   "launch of mla_decode"));
    return write_dense_stats(desc_, args, stream);
  }

 private:
  Status encode_key_map(const DecodeArgs& args, int32_t num_chunks, CUtensorMap& map) const {
    const int64_t page_size = desc_.format.page_size;
    const TensorView& k = args.kv.k;
    PagedRows rows;
    // A map needs a page and memory. Without pages all sequences are empty, and nothing is loaded.
    rows.base = k.shape[0] > 0 ? k.data : args.q.data;
    rows.dtype = desc_.format.dtype;
    rows.num_pages = std::max<int64_t>(1, k.shape[0]);
    rows.rows_per_page = page_size;
    rows.num_chunks = kKeyDim / 64;
    rows.row_stride_bytes = 2 * k.stride[2];
    rows.page_stride_bytes = k.shape[0] > 1 ? 2 * k.stride[0] : page_size * rows.row_stride_bytes;
    rows.box_rows = static_cast<int32_t>(std::min<int64_t>(page_size, kTileTokens));
    rows.box_chunks = page_size >= kTileTokens ? num_chunks : 1;
    return encode_paged_rows(rows, map);
  }

  Params make_params(const DecodeArgs& args, const RunShape& shape, void* workspace) const {
    Params p{};
    set_decode_tensors(args, p);
    char* g_workspace = static_cast<char*>(workspace);
    p.g_partials = reinterpret_cast<uint4*>(g_workspace);
    p.g_counters = reinterpret_cast<uint32_t*>(g_workspace + partials_bytes_);
    p.softmax_scale_log2e = desc_.softmax_scale * std::numbers::log2e_v<float>;
    p.num_q_heads = make_divisor(desc_.num_q_heads);
    p.num_row_blocks = make_divisor(shape.num_row_blocks);
    p.num_workers = make_divisor(shape.num_workers);
    p.num_splits = make_divisor(shape.num_splits);
    p.page_shift = std::countr_zero(static_cast<uint32_t>(desc_.format.page_size));
    p.causal = desc_.causal;
    p.may_split = shape.may_split;
    p.fixed_splits = desc_.batch_invariant;
    return p;
  }

  DecodeDesc desc_;
  DeviceInfo device_;
  int64_t partials_bytes_ = 0;
};

}  // namespace

RunShape run_shape(const DecodeDesc& desc, const DeviceInfo& device, int32_t batch,
                   int32_t query_len) {
  const bool fixed = desc.batch_invariant;
  RunShape shape;
  shape.instance = instance_for((fixed ? desc.max_query_len : query_len) * desc.num_q_heads,
                                desc.q_dtype == DType::kF16);
  const int32_t rows = kInstances[shape.instance].rows;
  shape.num_row_blocks = (query_len * desc.num_q_heads + rows - 1) / rows;
  if (fixed) {
    // Neither the batch nor the query length of the run may change the splits.
    const int32_t most_blocks = (desc.max_query_len * desc.num_q_heads + rows - 1) / rows;
    shape.num_splits = std::max(1, device.num_sms / most_blocks / desc.max_batch);
    shape.num_workers = shape.num_splits * batch;
    shape.may_split = shape.num_splits > 1 && desc.max_kv_len > kTileTokens;
    return shape;
  }
  shape.num_workers = std::max(1, device.num_sms / shape.num_row_blocks);
  if (batch <= kSmallBatch && batch <= shape.num_workers) {
    shape.num_splits = strided_splits(shape.num_workers, batch);
    // A grid of 132 CTAs of which 4 are idle takes 2.5% longer than one of 128: its CTAs share the
    // bandwidth less evenly.
    const int32_t used = shape.num_splits * batch;
    if (10 * used >= 9 * shape.num_workers) shape.num_workers = used;
  }
  shape.may_split = shape.num_workers > 1 && desc.max_kv_len > kTileTokens;
  return shape;
}

std::unique_ptr<DecodeKernel> make_decode_kernel(const DecodeDesc& desc, const DeviceInfo& device) {
  return std::make_unique<MlaDecodeKernel>(desc, device);
}

}  // namespace longdecode::cuda::mla_sm90
