// The end of a segment: the token warps of a row group join their results in a fixed order and
// write the final result of a pair that is not split, else a partial result.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_EPILOGUE_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_EPILOGUE_CUH_

#include "cuda/kernels/gqa_decode/compute.cuh"

namespace longdecode::cuda::gqa {

// Results of a row, to be joined: maximum in log2 units, sum.
struct RowTotal {
  float row_max = -INFINITY, row_sum = 0.0f;
};

// Joined results -> what O^T must be multiplied with, and the lse. A learned sink is one more term
// of the sum; it changes nothing where nothing is visible.
struct RowFinish {
  float factor, lse;

  __device__ __forceinline__ RowFinish(const RowTotal& total, const float* g_sink) {
    constexpr float kLn2 = 0.693147180559945f, kLog2E = 1.44269504088896f;
    float row_max = total.row_max, scale = 1.0f, sum = total.row_sum;
    const bool visible = sum != 0.0f;  // NaN is visible
    if (g_sink != nullptr && visible) {
      const float sink = __ldg(g_sink) * kLog2E;
      const float joint = fmaxf(row_max, sink);
      scale = ptx::exp2_approx(row_max - joint);
      sum = fmaf(sum, scale, ptx::exp2_approx(sink - joint));
      row_max = joint;
    }
    factor = visible ? scale * ptx::reciprocal_approx(sum) : 0.0f;
    lse = visible ? fmaf(row_max, kLn2, logf(sum)) : -INFINITY;
  }
};

// Where a query row lives in the tensors.
struct OutputRow {
  int token, head;
  bool exists;      // within query_len of the tensors
  bool is_padding;  // a ragged sequence has fewer query tokens: o = 0, lse = -inf

  __device__ __forceinline__ OutputRow(const Params& params, int kv_head, int row, int query_len) {
    token = divide(row, params.group);
    head = kv_head * static_cast<int>(params.group.value) + row -
           token * static_cast<int>(params.group.value);
    exists = token < params.query_len;
    is_padding = token >= query_len;
  }
  __device__ __forceinline__ const float* sink(const Params& params) const {
    return params.g_sink_logits != nullptr && exists ? params.g_sink_logits + head : nullptr;
  }
  __device__ __forceinline__ uint16_t* o(const Params& params, int sequence) const {
    return params.g_o + sequence * params.o_batch_stride + token * params.o_token_stride +
           head * params.o_head_stride;
  }
  __device__ __forceinline__ void store_lse(const Params& params, int sequence, float lse) const {
    if (params.g_lse == nullptr || !exists) return;
    const int64_t row = static_cast<int64_t>(sequence) * params.query_len + token;
    const int64_t num_q_heads = int64_t{params.num_kv_heads} * params.group.value;
    params.g_lse[row * num_q_heads + head] = is_padding ? -INFINITY : lse;
  }
};

// The final result of a pair's row group: block by block of 16 dims, as accumulated.
template <class C>
class OutputWriter {
 public:
  __device__ __forceinline__ OutputWriter(const Params& params, int sequence, int kv_head,
                                          int row_group, const RowTotal (&totals)[2])
      : query_len_(query_len_of(params, sequence)),
        row_(params, kv_head, row_group * kGroupRows + (static_cast<int>(threadIdx.x) & 31) / 4,
             query_len_) {
    const int first_row = row_group * kGroupRows + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const OutputRow row(params, kv_head, first_row + i, query_len_);
      const RowFinish finish(totals[i], row.sink(params));
      factor_[i] = finish.factor;
      lse_[i] = finish.lse;
    }
    g_row_ = row_.exists ? row_.o(params, sequence) + 2 * (threadIdx.x & 3) : params.g_o;
  }

  // By the whole warp.
  __device__ __forceinline__ void store(int block, const float4& v) const {
    uint32_t* g_to = reinterpret_cast<uint32_t*>(g_row_ + 16 * block);
    store_transposed(g_to, ptx::pack_pair<C::kIsF16>(v.x * factor_[0], v.y * factor_[1]));
    store_transposed(g_to + 4, ptx::pack_pair<C::kIsF16>(v.z * factor_[0], v.w * factor_[1]));
  }

  // By one warp of the row group.
  __device__ __forceinline__ void store_lse(const Params& params, int sequence, int kv_head,
                                            int row_group) const {
    const int lane = threadIdx.x & 31;
    if (lane >= 4) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      OutputRow(params, kv_head, row_group * kGroupRows + 2 * lane + i, query_len_)
          .store_lse(params, sequence, lse_[i]);
    }
  }

 private:
  // `pair` holds rows 2c, 2c + 1 of dim g; stored are dims 2c, 2c + 1 of row g.
  __device__ __forceinline__ void store_transposed(uint32_t* g_to, uint32_t pair) const {
    const uint32_t value = ptx::transpose_matrix(pair);
    if (row_.exists) *g_to = row_.is_padding ? 0u : value;
  }

  int query_len_;
  OutputRow row_;
  uint16_t* g_row_;
  float factor_[2], lse_[2];
};

template <class C>
__device__ __forceinline__ float4* partial_of(const Params& params, int slot, int row_group) {
  return reinterpret_cast<float4*>(params.g_partials) +
         (static_cast<int64_t>(slot) * params.num_row_groups + row_group) * C::kPartialFloat4;
}

// The lane's two rows of the warp's own result into shared memory.
template <class C>
__device__ __forceinline__ void store_result(typename C::WarpResult& s_result, SoftmaxState& state,
                                             const float (&output)[C::kDimBlocks][4]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int offset = 4; offset < 32; offset <<= 1) {
      state.row_sum[i] += __shfl_xor_sync(kFullWarp, state.row_sum[i], offset);
    }
  }
#pragma unroll
  for (int block = 0; block < C::kDimBlocks; ++block) {
    const float* v = output[block];
    s_result.values[block][lane] = make_float4(v[0], v[1], v[2], v[3]);
  }
  if (lane < 4) {
    s_result.rows[lane] =
        make_float4(state.row_max[0], state.row_sum[0], state.row_max[1], state.row_sum[1]);
  }
}

// By the token warps of a row group: `cta_group` within the CTA, `row_group` within the pair.
template <class C>
__device__ __forceinline__ void finish_item(const Params& params,
                                            typename C::SharedStorage& s_storage,
                                            const WorkItem& item, int cta_group, int row_group,
                                            int token_warp, SoftmaxState& state,
                                            const float (&output)[C::kDimBlocks][4]) {
  typename C::WarpResult(&s_results)[C::kTokenWarps] = s_storage.results[cta_group];
  const int lane = threadIdx.x & 31, barrier = 1 + cta_group;
  ptx::named_barrier_sync(barrier, 32 * C::kTokenWarps);  // the item before has been read
  store_result<C>(s_results[token_warp], state, output);
  ptx::named_barrier_sync(barrier, 32 * C::kTokenWarps);
  float4 rows[C::kTokenWarps];
  float weights[C::kTokenWarps][2];
  RowTotal totals[2];
#pragma unroll
  for (int w = 0; w < C::kTokenWarps; ++w) {
    rows[w] = s_results[w].rows[lane & 3];
    totals[0].row_max = fmaxf(totals[0].row_max, rows[w].x);
    totals[1].row_max = fmaxf(totals[1].row_max, rows[w].z);
  }
#pragma unroll
  for (int w = 0; w < C::kTokenWarps; ++w) {
    weights[w][0] = part_weight(rows[w].x, totals[0].row_max);
    weights[w][1] = part_weight(rows[w].z, totals[1].row_max);
    totals[0].row_sum = fmaf(weights[w][0], rows[w].y, totals[0].row_sum);
    totals[1].row_sum = fmaf(weights[w][1], rows[w].w, totals[1].row_sum);
  }
  const auto joined = [&](int block) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < C::kTokenWarps; ++w) {
      const float4 v = s_results[w].values[block][lane];
      sum.x = fmaf(weights[w][0], v.x, sum.x);
      sum.y = fmaf(weights[w][1], v.y, sum.y);
      sum.z = fmaf(weights[w][0], v.z, sum.z);
      sum.w = fmaf(weights[w][1], v.w, sum.w);
    }
    return sum;
  };
  if (row_group >= params.num_row_groups) return;  // padding of the last row block
  if (item.num_splits > 1) {
    float4* g_partial = partial_of<C>(params, item.slot, row_group);
    for (int block = token_warp; block < C::kDimBlocks; block += C::kTokenWarps) {
      __stcg(g_partial + block * 32 + lane, joined(block));
    }
    if (token_warp == 0 && lane < 4) {
      __stcg(
          g_partial + C::kDimBlocks * 32 + lane,
          make_float4(totals[0].row_max, totals[0].row_sum, totals[1].row_max, totals[1].row_sum));
    }
  } else {
    const OutputWriter<C> writer(params, item.sequence, item.head, row_group, totals);
    for (int block = token_warp; block < C::kDimBlocks; block += C::kTokenWarps) {
      writer.store(block, joined(block));
    }
    if (token_warp == 0) writer.store_lse(params, item.sequence, item.head, row_group);
  }
}

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_EPILOGUE_CUH_
