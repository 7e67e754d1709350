#include "capi/convert.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "capi/structs.h"

namespace longdecode::capi {
namespace {

template <typename Enum>
constexpr bool same(Enum value, int c_value) {
  return static_cast<int>(value) == c_value;
}
static_assert(same(DType::kF32, LD_DTYPE_F32) && same(DType::kF16, LD_DTYPE_F16) &&
              same(DType::kBF16, LD_DTYPE_BF16));
static_assert(same(DeviceType::kCpu, LD_DEVICE_CPU) && same(DeviceType::kCuda, LD_DEVICE_CUDA));
static_assert(same(Op::kGqa, LD_OP_GQA) && same(Op::kMla, LD_OP_MLA));
static_assert(same(Method::kDense, LD_METHOD_DENSE) && same(Method::kFfd, LD_METHOD_FFD));
static_assert(same(KeyEncoding::kPlain, LD_KEYS_PLAIN) &&
              same(KeyEncoding::kTwoPlane, LD_KEYS_TWO_PLANE));
static_assert(kMaxRank == LD_MAX_RANK && kMaxQueryLen == LD_MAX_QUERY_LEN &&
              kMaxTruncateTokens == LD_MAX_TRUNCATE_TOKENS && kTileTokens == LD_TILE_TOKENS &&
              kMlaKeyDim == LD_MLA_KEY_DIM && kMlaValueDim == LD_MLA_VALUE_DIM);

// A later field must not land in bytes that an earlier header calls padding.
#define LD_ENDS_WITH(type, field) \
  (offsetof(type, field) + sizeof(std::declval<type>().field) == sizeof(type))
static_assert(LD_ENDS_WITH(ld_tensor, stride) && LD_ENDS_WITH(ld_kv_format, reserved) &&
              LD_ENDS_WITH(ld_device_info, shared_memory_bytes) &&
              LD_ENDS_WITH(ld_kv_format_sizes, bytes_per_token) &&
              LD_ENDS_WITH(ld_ffd_options, reserved) &&
              LD_ENDS_WITH(ld_decode_desc, batch_invariant) &&
              LD_ENDS_WITH(ld_kv_layer, recent_k) && LD_ENDS_WITH(ld_batch, reserved) &&
              LD_ENDS_WITH(ld_decode_stats, kept_tiles_stride) &&
              LD_ENDS_WITH(ld_decode_args, reserved) &&
              LD_ENDS_WITH(ld_kernel_choice, tokens_per_split) &&
              LD_ENDS_WITH(ld_merge_args, reserved) && LD_ENDS_WITH(ld_append_args, v) &&
              LD_ENDS_WITH(ld_cache_desc, max_sequences));

Status to_bool(const char* name, int32_t from, bool* to) {
  if (from != 0 && from != 1) return invalid_argument("{} is {}; allowed: 0 or 1", name, from);
  *to = from == 1;
  return {};
}

Status check_reserved(const char* name, int32_t reserved) {
  if (reserved == 0) return {};
  return invalid_argument("{}.reserved is {}; allowed: 0", name, reserved);
}

Result<FfdOptions> to_ffd_options(const ld_ffd_options* from) {
  ld_ffd_options c = ld_ffd_options_default();
  if (from != nullptr) LD_RETURN_IF_ERROR(read_struct("ffd", from, &c));
  LD_RETURN_IF_ERROR(check_reserved("ffd", c.reserved));
  FfdOptions options;
  options.delta = c.delta;
  options.margin_sigmas = c.margin_sigmas;
  LD_RETURN_IF_ERROR(to_bool("ffd.certified", c.certified, &options.certified));
  options.sink_tokens = c.sink_tokens;
  options.recent_tokens = c.recent_tokens;
  return options;
}

Result<DecodeStats> to_stats(const ld_decode_stats* from) {
  ld_decode_stats c = ld_decode_stats_default();
  if (from != nullptr) LD_RETURN_IF_ERROR(read_struct("stats", from, &c));
  DecodeStats stats;
  stats.tokens_scanned = c.tokens_scanned;
  stats.tokens_attended = c.tokens_attended;
  stats.bytes_read = c.bytes_read;
  stats.pseudo_max = c.pseudo_max;
  stats.dropped_mass_bound = c.dropped_mass_bound;
  stats.kept_tiles = c.kept_tiles;
  stats.kept_tiles_stride = c.kept_tiles_stride;
  return stats;
}

template <size_t kSize>
void copy_text(const char* from, char (&to)[kSize]) {
  std::snprintf(to, kSize, "%s", from);
}

}  // namespace

Result<TensorView> to_tensor(const char* name, const ld_tensor* from) {
  ld_tensor c = {};
  LD_RETURN_IF_ERROR(read_struct(name, from, &c));
  TensorView view;
  view.data = c.data;
  view.dtype = static_cast<DType>(c.dtype);
  view.rank = c.rank;
  std::copy(std::begin(c.shape), std::end(c.shape), view.shape);
  std::copy(std::begin(c.stride), std::end(c.stride), view.stride);
  return view;
}

Result<TensorView> to_optional_tensor(const char* name, const ld_tensor* from) {
  if (from == nullptr) return TensorView{};
  return to_tensor(name, from);
}

Result<DeviceInfo> to_device(const ld_device_info* from) {
  ld_device_info c = ld_device_info_default();
  LD_RETURN_IF_ERROR(read_struct("device", from, &c));
  DeviceInfo device;
  device.type = static_cast<DeviceType>(c.type);
  device.device_idx = c.device_idx;
  c.name[sizeof c.name - 1] = '\0';
  copy_text(c.name, device.name);
  device.memory_bytes = c.memory_bytes;
  device.last_level_cache_bytes = c.last_level_cache_bytes;
  device.num_threads = c.num_threads;
  LD_RETURN_IF_ERROR(to_bool("device.has_avx512_vnni", c.has_avx512_vnni, &device.has_avx512_vnni));
  LD_RETURN_IF_ERROR(to_bool("device.has_avx512_bf16", c.has_avx512_bf16, &device.has_avx512_bf16));
  LD_RETURN_IF_ERROR(to_bool("device.has_amx_bf16", c.has_amx_bf16, &device.has_amx_bf16));
  device.compute_capability = c.compute_capability;
  device.num_sms = c.num_sms;
  device.shared_memory_bytes = c.shared_memory_bytes;
  return device;
}

Result<KvFormat> to_format(const char* name, const ld_kv_format* from) {
  ld_kv_format c = {};
  LD_RETURN_IF_ERROR(read_struct(name, from, &c));
  LD_RETURN_IF_ERROR(check_reserved(name, c.reserved));
  KvFormat format;
  format.op = static_cast<Op>(c.op);
  format.keys = static_cast<KeyEncoding>(c.keys);
  format.dtype = static_cast<DType>(c.dtype);
  format.num_kv_heads = c.num_kv_heads;
  format.key_dim = c.key_dim;
  format.value_dim = c.value_dim;
  format.page_size = c.page_size;
  return format;
}

Result<DecodeDesc> to_decode_desc(const ld_decode_desc* from) {
  ld_decode_desc c = ld_decode_desc_default();
  LD_RETURN_IF_ERROR(read_struct("desc", from, &c));
  DecodeDesc desc;
  desc.method = static_cast<Method>(c.method);
  LD_ASSIGN_OR_RETURN(desc.format, to_format("desc.format", c.format));
  desc.q_dtype = static_cast<DType>(c.q_dtype);
  desc.num_q_heads = c.num_q_heads;
  desc.max_batch = c.max_batch;
  desc.max_query_len = c.max_query_len;
  desc.max_kv_len = c.max_kv_len;
  desc.softmax_scale = c.softmax_scale;
  desc.soft_cap = c.soft_cap;
  desc.sliding_window = c.sliding_window;
  LD_RETURN_IF_ERROR(to_bool("desc.learned_sinks", c.learned_sinks, &desc.learned_sinks));
  LD_RETURN_IF_ERROR(to_bool("desc.causal", c.causal, &desc.causal));
  LD_ASSIGN_OR_RETURN(desc.ffd, to_ffd_options(c.ffd));
  LD_RETURN_IF_ERROR(to_bool("desc.batch_invariant", c.batch_invariant, &desc.batch_invariant));
  return desc;
}

Result<KvLayerView> to_layer(const ld_kv_layer* from) {
  ld_kv_layer c = ld_kv_layer_default();
  LD_RETURN_IF_ERROR(read_struct("kv", from, &c));
  KvLayerView layer;
  LD_ASSIGN_OR_RETURN(layer.format, to_format("kv.format", c.format));
  LD_ASSIGN_OR_RETURN(layer.k, to_optional_tensor("kv.k", c.k));
  LD_ASSIGN_OR_RETURN(layer.v, to_optional_tensor("kv.v", c.v));
  layer.chunks = c.chunks;
  layer.chunk_page_stride_bytes = c.chunk_page_stride_bytes;
  layer.residuals = c.residuals;
  layer.residual_page_stride_bytes = c.residual_page_stride_bytes;
  layer.num_pages = c.num_pages;
  LD_ASSIGN_OR_RETURN(layer.recent_k, to_optional_tensor("kv.recent_k", c.recent_k));
  return layer;
}

Result<BatchView> to_batch(const ld_batch* from) {
  ld_batch c = ld_batch_default();
  LD_RETURN_IF_ERROR(read_struct("batch", from, &c));
  LD_RETURN_IF_ERROR(check_reserved("batch", c.reserved));
  BatchView batch;
  batch.batch = c.batch;
  batch.block_table = c.block_table;
  batch.block_table_stride = c.block_table_stride;
  batch.kv_lens = c.kv_lens;
  batch.query_lens = c.query_lens;
  batch.slots = c.slots;
  return batch;
}

Result<DecodeArgs> to_decode_args(const ld_decode_args* from) {
  ld_decode_args c = ld_decode_args_default();
  LD_RETURN_IF_ERROR(read_struct("args", from, &c));
  LD_RETURN_IF_ERROR(check_reserved("args", c.reserved));
  DecodeArgs args;
  args.query_len = c.query_len;
  LD_ASSIGN_OR_RETURN(args.q, to_tensor("q", c.q));
  LD_ASSIGN_OR_RETURN(args.o, to_tensor("o", c.o));
  args.lse = c.lse;
  LD_ASSIGN_OR_RETURN(args.kv, to_layer(c.kv));
  LD_ASSIGN_OR_RETURN(args.batch, to_batch(c.batch));
  args.sink_logits = c.sink_logits;
  LD_ASSIGN_OR_RETURN(args.stats, to_stats(c.stats));
  return args;
}

Result<AppendArgs> to_append_args(const ld_append_args* from) {
  ld_append_args c = ld_append_args_default();
  LD_RETURN_IF_ERROR(read_struct("args", from, &c));
  AppendArgs args;
  LD_ASSIGN_OR_RETURN(args.kv, to_layer(c.kv));
  LD_ASSIGN_OR_RETURN(args.batch, to_batch(c.batch));
  LD_ASSIGN_OR_RETURN(args.k, to_tensor("k", c.k));
  LD_ASSIGN_OR_RETURN(args.v, to_optional_tensor("v", c.v));
  return args;
}

Result<MergeArgs> to_merge_args(const ld_merge_args* from) {
  ld_merge_args c = ld_merge_args_default();
  LD_RETURN_IF_ERROR(read_struct("args", from, &c));
  LD_RETURN_IF_ERROR(check_reserved("args", c.reserved));
  MergeArgs args;
  args.num_partials = c.num_partials;
  args.num_rows = c.num_rows;
  args.dim = c.dim;
  args.partial_o = c.partial_o;
  args.partial_lse = c.partial_lse;
  args.o = c.o;
  args.lse = c.lse;
  return args;
}

Result<KvCacheDesc> to_cache_desc(const ld_cache_desc* from) {
  ld_cache_desc c = ld_cache_desc_default();
  LD_RETURN_IF_ERROR(read_struct("desc", from, &c));
  KvCacheDesc desc;
  LD_ASSIGN_OR_RETURN(desc.format, to_format("desc.format", c.format));
  desc.num_layers = c.num_layers;
  desc.num_pages = c.num_pages;
  desc.max_sequences = c.max_sequences;
  desc.max_kv_len = c.max_kv_len;
  return desc;
}

ld_tensor from_tensor(const TensorView& from) {
  ld_tensor c = {};
  c.struct_size = sizeof c;
  c.data = from.data;
  c.dtype = static_cast<int32_t>(from.dtype);
  c.rank = from.rank;
  std::copy(std::begin(from.shape), std::end(from.shape), c.shape);
  std::copy(std::begin(from.stride), std::end(from.stride), c.stride);
  return c;
}

ld_device_info from_device(const DeviceInfo& from) {
  ld_device_info c = ld_device_info_default();
  c.type = static_cast<int32_t>(from.type);
  c.device_idx = from.device_idx;
  copy_text(from.name, c.name);
  c.memory_bytes = from.memory_bytes;
  c.last_level_cache_bytes = from.last_level_cache_bytes;
  c.num_threads = from.num_threads;
  c.has_avx512_vnni = from.has_avx512_vnni;
  c.has_avx512_bf16 = from.has_avx512_bf16;
  c.has_amx_bf16 = from.has_amx_bf16;
  c.compute_capability = from.compute_capability;
  c.num_sms = from.num_sms;
  c.shared_memory_bytes = from.shared_memory_bytes;
  return c;
}

ld_kv_format from_format(const KvFormat& from) {
  ld_kv_format c =
      ld_kv_format_gqa(static_cast<int32_t>(from.keys), static_cast<int32_t>(from.dtype),
                       from.num_kv_heads, from.key_dim, from.page_size);
  c.op = static_cast<int32_t>(from.op);
  c.value_dim = from.value_dim;
  return c;
}

ld_kernel_choice from_choice(const KernelChoice& from) {
  ld_kernel_choice c = ld_kernel_choice_default();
  copy_text(from.name.c_str(), c.name);
  copy_text(from.isa.c_str(), c.isa);
  c.tokens_per_split = from.tokens_per_split;
  return c;
}

ld_batch from_batch(const BatchView& from) {
  ld_batch c = ld_batch_default();
  c.batch = from.batch;
  c.block_table = from.block_table;
  c.block_table_stride = from.block_table_stride;
  c.kv_lens = from.kv_lens;
  c.query_lens = from.query_lens;
  c.slots = from.slots;
  return c;
}

}  // namespace longdecode::capi
