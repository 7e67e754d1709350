// Enumerations and the plain device description shared by every header.
#ifndef LONGDECODE_TYPES_H_
#define LONGDECODE_TYPES_H_

#include <cstdint>

namespace longdecode {

// Numeric values of every enum here are part of the C ABI.

enum class DType : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2 };

constexpr int64_t dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

enum class DeviceType : int32_t { kCpu = 0, kCuda = 1 };

// The attention operation. kGqa: K and V of num_kv_heads heads, each shared by a group of query
// heads. kMla: one latent row per token shared by all query heads; V is a prefix of the row.
enum class Op : int32_t { kGqa = 0, kMla = 1 };

// How the operation reads the cache. kDense attends every token; kFfd (Faster Flash Decoding)
// scans 2-bit codes and attends the tiles that may matter exactly.
enum class Method : int32_t { kDense = 0, kFfd = 1 };

// Most query tokens per sequence in one decode run, and the most tokens `truncate` may take back
// from a two-plane cache.
inline constexpr int32_t kMaxQueryLen = 8;
inline constexpr int32_t kMaxTruncateTokens = 8;

// MLA in the absorbed form: K is the whole row, V its first kMlaValueDim channels.
inline constexpr int32_t kMlaKeyDim = 576;
inline constexpr int32_t kMlaValueDim = 512;

// Most CPU threads of a run. More than any machine has CPUs; an OpenMP runtime ends the process
// where it cannot start the threads that it is asked for.
inline constexpr int32_t kMaxThreads = 1024;

// Facts about a device as a plain struct, so that kernel selection is a pure function of
// (descriptor, device). `detect_device` fills it; tests fill it by hand.
struct DeviceInfo {
  DeviceType type = DeviceType::kCpu;
  int32_t device_idx = 0;
  char name[96] = {};
  int64_t memory_bytes = 0;
  int64_t last_level_cache_bytes = 0;
  // CPU
  int32_t num_threads = 1;  // worker threads a run may use: 1..kMaxThreads
  bool has_avx512_vnni = false;
  bool has_avx512_bf16 = false;
  bool has_amx_bf16 = false;
  // CUDA: with type, all that select_kernel reads
  // 90 for sm_90. It alone says which kernels run: a smaller one than the GPU's, with the
  // shared_memory_bytes of that GPU, chooses the kernels for that one.
  int32_t compute_capability = 0;
  int32_t num_sms = 0;
  int64_t shared_memory_bytes = 0;  // opt-in maximum per block
};

// A CUDA stream (cudaStream_t), or nullptr: the default stream, and always on the CPU.
using StreamHandle = void*;

}  // namespace longdecode

#endif  // LONGDECODE_TYPES_H_
