#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "cuda/host/status.h"
#include "cuda/model/model_ops.h"
#include "longdecode/attention.h"
#include "runner/gpu/device_weights.h"
#include "runner/linear/matrix.h"
#include "runner/model/weights.h"

namespace longdecode::runner {
namespace {

using cuda::cuda_status;

constexpr int64_t kStagingBytes = int64_t{16} << 20;

// One row of a file's matrix.
struct Row {
  const Matrix* matrix = nullptr;
  int64_t row_idx = 0;
};

// Dequantises on all CPUs into one of two pinned buffers while the other one is on its way.
class Uploader {
 public:
  Uploader(int32_t num_threads, int64_t total_bytes,
           const std::function<void(int64_t, int64_t)>& progress)
      : num_threads_(num_threads), total_bytes_(total_bytes), progress_(progress) {}
  ~Uploader() {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    for (Staging& staging : staging_) {
      cudaFreeHost(staging.data);
      if (staging.sent != nullptr) cudaEventDestroy(staging.sent);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  Status init() {
    LD_RETURN_IF_ERROR(cuda_status(cudaStreamCreate(&stream_), "cudaStreamCreate"));
    for (Staging& staging : staging_) {
      LD_RETURN_IF_ERROR(
          cuda_status(cudaHostAlloc(reinterpret_cast<void**>(&staging.data), kStagingBytes, 0),
                      "cudaHostAlloc of a buffer for weights"));
      LD_RETURN_IF_ERROR(cuda_status(
          cudaEventCreateWithFlags(&staging.sent, cudaEventDisableTiming), "cudaEventCreate"));
    }
    return Status();
  }

  // to[num_rows, num_cols] in bf16; row_at(i) is where row i comes from.
  template <typename RowAt>
  Status matrix(uint16_t* to, int64_t num_rows, int64_t num_cols, const RowAt& row_at) {
    const int64_t rows_at_once = std::max<int64_t>(1, kStagingBytes / (2 * num_cols));
    for (int64_t first = 0; first < num_rows; first += rows_at_once) {
      const int64_t count = std::min(rows_at_once, num_rows - first);
      Staging& staging = staging_[turn_];
      turn_ = 1 - turn_;
      LD_RETURN_IF_ERROR(cuda_status(cudaEventSynchronize(staging.sent), "cudaEventSynchronize"));
#pragma omp parallel num_threads(num_threads_)
      {
        std::vector<float> values(static_cast<size_t>(num_cols));
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count; ++i) {
          const Row row = row_at(first + i);
          dequantize_row(*row.matrix, row.row_idx, values.data());
          convert_to_bf16(values.data(), num_cols, staging.data + i * num_cols);
        }
      }
      LD_RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(to + first * num_cols, staging.data,
                                                     static_cast<size_t>(2 * count * num_cols),
                                                     cudaMemcpyHostToDevice, stream_),
                                     "cudaMemcpyAsync of weights"));
      LD_RETURN_IF_ERROR(cuda_status(cudaEventRecord(staging.sent, stream_), "cudaEventRecord"));
      done_bytes_ += 2 * count * num_cols;
      if (progress_) progress_(done_bytes_, std::max(total_bytes_, done_bytes_));
    }
    return Status();
  }
  Status matrix(uint16_t* to, const Matrix& from) {
    return matrix(to, from.num_rows, from.num_cols, [&](int64_t i) { return Row{&from, i}; });
  }

  Status vector(float* to, const float* from, int64_t size) {
    if (to == nullptr) return Status();
    if (from == nullptr) {
      return cuda_status(cudaMemsetAsync(to, 0, static_cast<size_t>(size) * sizeof(float), stream_),
                         "cudaMemsetAsync of weights");
    }
    return bytes(to, from, size * static_cast<int64_t>(sizeof(float)));
  }
  Status bytes(void* to, const void* from, int64_t num_bytes) {
    return cuda_status(
        cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync of weights");
  }

  Status finish() { return cuda_status(cudaStreamSynchronize(stream_), "upload of the weights"); }

 private:
  struct Staging {
    uint16_t* data = nullptr;
    cudaEvent_t sent = nullptr;
  };
  int32_t num_threads_;
  int64_t total_bytes_;
  int64_t done_bytes_ = 0;
  const std::function<void(int64_t, int64_t)>& progress_;
  cudaStream_t stream_ = nullptr;
  Staging staging_[2];
  int32_t turn_ = 0;
};

Status upload_layer(const ModelConfig& config, const LayerWeights& from, const DeviceLayer& to,
                    Uploader* uploader) {
  const int64_t hidden = config.hidden_dim;
  const int64_t q_dim = config.q_dim();
  const int64_t kv_dim = config.kv_dim();
  LD_RETURN_IF_ERROR(uploader->vector(to.attn_norm, from.attn_norm, hidden));
  LD_RETURN_IF_ERROR(uploader->vector(to.ffn_norm, from.ffn_norm, hidden));
  LD_RETURN_IF_ERROR(uploader->vector(to.q_norm, from.q_norm, config.head_dim));
  LD_RETURN_IF_ERROR(uploader->vector(to.k_norm, from.k_norm, config.head_dim));
  if (to.qkv_bias != nullptr) {
    LD_RETURN_IF_ERROR(uploader->vector(to.qkv_bias, from.q_bias, q_dim));
    LD_RETURN_IF_ERROR(uploader->vector(to.qkv_bias + q_dim, from.k_bias, kv_dim));
    LD_RETURN_IF_ERROR(uploader->vector(to.qkv_bias + q_dim + kv_dim, from.v_bias, kv_dim));
  }
  LD_RETURN_IF_ERROR(uploader->matrix(to.qkv, q_dim + 2 * kv_dim, hidden, [&](int64_t i) {
    if (i < q_dim) return Row{&from.q, i};
    return i < q_dim + kv_dim ? Row{&from.k, i - q_dim} : Row{&from.v, i - q_dim - kv_dim};
  }));
  LD_RETURN_IF_ERROR(uploader->matrix(to.attn_output, from.attn_output));
  LD_RETURN_IF_ERROR(
      uploader->matrix(to.gate_up, 2 * int64_t{config.ffn_dim}, hidden, [&](int64_t i) {
        const int64_t row = i / (2 * cuda::kGateBlock) * cuda::kGateBlock + i % cuda::kGateBlock;
        return Row{i / cuda::kGateBlock % 2 == 0 ? &from.ffn_gate : &from.ffn_up, row};
      }));
  return uploader->matrix(to.ffn_down, from.ffn_down);
}

}  // namespace

Result<DeviceWeights> upload_weights(const Model& model, const DeviceInfo& device,
                                     const std::function<void(int64_t, int64_t)>& progress) {
  const ModelConfig& config = model.config();
  const ModelWeights& from = model.weights();
  WeightParts parts;
  parts.tied = from.output.data == from.token_embedding.data;
  for (const LayerWeights& layer : from.layers) {
    parts.qkv_bias |= layer.q_bias != nullptr || layer.k_bias != nullptr || layer.v_bias != nullptr;
  }
  LD_ASSIGN_OR_RETURN(DeviceWeights weights, allocate_weights(config, parts, device));
  const cuda::DeviceGuard guard(device.device_idx);
  LD_ASSIGN_OR_RETURN(const DeviceInfo cpu, detect_device(DeviceType::kCpu));
  Uploader uploader(cpu.num_threads, weights.memory_bytes, progress);
  LD_RETURN_IF_ERROR(uploader.init());
  LD_RETURN_IF_ERROR(uploader.matrix(weights.token_embedding, from.token_embedding));
  for (size_t l = 0; l < from.layers.size(); ++l) {
    LD_RETURN_IF_ERROR(upload_layer(config, from.layers[l], weights.layers[l], &uploader));
  }
  if (!parts.tied) LD_RETURN_IF_ERROR(uploader.matrix(weights.output, from.output));
  LD_RETURN_IF_ERROR(uploader.vector(weights.output_norm, from.output_norm, config.hidden_dim));
  const std::vector<double> frequencies = rope_frequencies(config, from.rope_divisors);
  LD_RETURN_IF_ERROR(uploader.bytes(weights.rope_frequencies, frequencies.data(),
                                    static_cast<int64_t>(frequencies.size() * sizeof(double))));
  LD_RETURN_IF_ERROR(uploader.finish());
  return weights;
}

}  // namespace longdecode::runner
