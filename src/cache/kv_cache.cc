// KvCache: the host bookkeeping (SequenceTable) joined with device memory (LayerPools, StepArrays).
// Not thread-safe: calls on one cache must not overlap.
#include "longdecode/kv_cache.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cache/import_dense.h"
#include "cache/layer_pools.h"
#include "cache/sequence_table.h"
#include "cache/step_arrays.h"
#include "cache/step_layers.h"
#include "ops/backends.h"

namespace longdecode {
namespace {

constexpr int32_t kMaxLayers = 4096;

Status check_range(const char* name, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return {};
  return invalid_argument("{} is {}; allowed: 1 to {}", name, value, max);
}

Status validate_desc(const KvCacheDesc& desc) {
  constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
  LD_RETURN_IF_ERROR(validate(desc.format));
  LD_RETURN_IF_ERROR(check_range("num_layers", desc.num_layers, kMaxLayers));
  LD_RETURN_IF_ERROR(check_range("num_pages", desc.num_pages, kMaxInt32));
  LD_RETURN_IF_ERROR(check_range("max_sequences", desc.max_sequences, kMaxInt32));
  return check_range("max_kv_len", desc.max_kv_len, kMaxInt32);
}

Status check_not_moved(const void* impl) {
  if (impl != nullptr) return {};
  return failed_precondition("the cache was moved from; use the object it was moved to");
}

}  // namespace

struct KvCache::Impl {
  KvCacheDesc desc;
  DeviceInfo device;
  LayerPools pools;
  SequenceTable table;
  StepArrays step;
  StepArrays import_step;  // batch 1
  StepLayers step_layers;
  StreamHandle copy_stream = nullptr;  // of set_stream
  bool is_step_shrunk = false;         // `step` holds more tokens and pages than the table

  CopyPage copy_page() {
    return [this](int32_t from, int32_t to) { return pools.copy_page(from, to, copy_stream); };
  }
  // The view must not name pages that a sequence has given up.
  void drop_stale_view() {
    if (table.step_state() == StepState::kNone) step.clear();
  }
  KvLayerView layer(int32_t layer_idx) const {
    if (layer_idx < 0 || layer_idx >= desc.num_layers) return {};
    return pools.view(layer_idx);
  }
  // The most tokens that a sequence gets in the step; 0: there is nothing to write.
  int32_t max_new_tokens() const {
    const std::span<const int32_t> new_tokens = table.step_new_tokens();
    return new_tokens.empty() ? 0 : *std::max_element(new_tokens.begin(), new_tokens.end());
  }
  Status reserve(std::span<const SequenceId> sequences, std::span<const int32_t> new_tokens);
  // Whether the reserved step waits for the tokens of this layer.
  Status check_writable(const char* function, int32_t layer_idx) const;
  Status append(int32_t layer_idx, const TensorView& k, const TensorView& v, StreamHandle stream);
  Status import_run(SequenceId sequence, std::span<const PagedKv> layers,
                    std::span<const int32_t> block_table, int64_t token, int64_t num_tokens,
                    StreamHandle stream);
  Status import_dense(SequenceId sequence, std::span<const PagedKv> layers,
                      std::span<const int32_t> block_table, int64_t kv_len, StreamHandle stream);
};

KvCache::KvCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

Result<KvCache> KvCache::create(const KvCacheDesc& desc, const DeviceInfo& device) {
  LD_RETURN_IF_ERROR(validate_desc(desc));
  LD_ASSIGN_OR_RETURN(const Backend* const backend, find_backend(device.type));
  try {  // the tables are host memory, and a descriptor may ask for more than there is
    LD_ASSIGN_OR_RETURN(LayerPools pools, LayerPools::create(desc, *backend, device));
    const int64_t width = (desc.max_kv_len - 1) / desc.format.page_size + 1;
    LD_ASSIGN_OR_RETURN(StepArrays step,
                        StepArrays::create(desc.max_sequences, width, *backend, device));
    LD_ASSIGN_OR_RETURN(StepArrays import_step, StepArrays::create(1, width, *backend, device));
    return KvCache(std::unique_ptr<Impl>(
        new Impl{desc, device, std::move(pools), SequenceTable(desc), std::move(step),
                 std::move(import_step), StepLayers(desc.num_layers)}));
  } catch (const std::exception&) {
    return out_of_memory("the tables of max_sequences {} with max_kv_len {} do not fit",
                         desc.max_sequences, desc.max_kv_len);
  }
}

const KvCacheDesc& KvCache::desc() const {
  static const KvCacheDesc moved_from;
  return impl_ != nullptr ? impl_->desc : moved_from;
}

int64_t KvCache::num_free_pages() const {
  return impl_ != nullptr ? impl_->table.num_free_pages() : 0;
}

int64_t KvCache::memory_bytes() const {
  if (impl_ == nullptr) return 0;
  return impl_->pools.memory_bytes() + impl_->table.memory_bytes() + impl_->step.memory_bytes() +
         impl_->import_step.memory_bytes();
}

Status KvCache::set_stream(StreamHandle stream) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  impl_->copy_stream = stream;
  return {};
}

Result<SequenceId> KvCache::add_sequence() {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  return impl_->table.add();
}

Status KvCache::free_sequence(SequenceId sequence) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  Status status = impl_->table.free(sequence);
  impl_->drop_stale_view();
  return status;
}

Result<int64_t> KvCache::kv_len(SequenceId sequence) const {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  return impl_->table.kv_len(sequence);
}

Result<SequenceId> KvCache::fork(SequenceId parent) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  LD_ASSIGN_OR_RETURN(const SequenceId child, impl_->table.fork(parent, impl_->copy_page()));
  if (Status status = impl_->pools.copy_ring(parent, child, impl_->copy_stream); !status.ok()) {
    LD_RETURN_IF_ERROR(impl_->table.free(child));
    return status;
  }
  return child;
}

Status KvCache::truncate(SequenceId sequence, int64_t num_tokens) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  Status status = impl_->table.truncate(sequence, num_tokens);
  impl_->drop_stale_view();
  return status;
}

Status KvCache::reserve(std::span<const SequenceId> sequences,
                        std::span<const int32_t> new_tokens) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  return impl_->reserve(sequences, new_tokens);
}

Status KvCache::Impl::reserve(std::span<const SequenceId> sequences,
                              std::span<const int32_t> new_tokens) {
  Status status = table.reserve(sequences, new_tokens, copy_page());
  drop_stale_view();
  LD_RETURN_IF_ERROR(status);
  step_layers.reset();
  is_step_shrunk = false;
  for (size_t b = 0; b < sequences.size(); ++b) {
    LD_ASSIGN_OR_RETURN(const int64_t kv_len, table.kv_len(sequences[b]));
    step.set(static_cast<int32_t>(b), {static_cast<int32_t>(kv_len) + new_tokens[b], new_tokens[b],
                                       sequences[b], table.pages(sequences[b])});
  }
  status = step.upload(static_cast<int32_t>(sequences.size()), copy_stream);
  if (!status.ok()) table.cancel_step();
  return status;
}

const BatchView& KvCache::step() const {
  static const BatchView moved_from;
  return impl_ != nullptr ? impl_->step.view() : moved_from;
}

Status KvCache::Impl::check_writable(const char* function, int32_t layer_idx) const {
  if (table.step_state() != StepState::kReserved) {
    return failed_precondition(
        "{} without a reserved step: call reserve first (freeing or "
        "truncating a sequence of the step drops it)",
        function);
  }
  if (layer_idx < 0 || layer_idx >= desc.num_layers) {
    return invalid_argument("layer_idx is {}; allowed: 0 to {}", layer_idx, desc.num_layers - 1);
  }
  return step_layers.check_pending(layer_idx);
}

Status KvCache::Impl::append(int32_t layer_idx, const TensorView& k, const TensorView& v,
                             StreamHandle stream) {
  LD_RETURN_IF_ERROR(check_writable("append", layer_idx));
  const int32_t max_new = max_new_tokens();
  if (max_new == 0) return {};
  if (is_step_shrunk) {
    return failed_precondition(
        "append after shrink_step, which leaves the arrays of the step as reserve filled them: "
        "mark_appended what is written, or reserve again");
  }
  if (k.rank != 4 || k.shape[0] != step.view().batch || k.shape[1] < max_new) {
    return invalid_argument(
        "k has rank {} and shape [{}, {}, ...]; the reserved step allows rank "
        "4, batch {} and {} new tokens or more",
        k.rank, k.shape[0], k.shape[1], step.view().batch, max_new);
  }
  AppendArgs args{.kv = layer(layer_idx), .batch = step.view(), .k = k, .v = v};
  Status status = append_kv(args, device, stream);
  // An argument that is refused has changed nothing; any other failure may have written.
  if (status.code() == StatusCode::kInvalidArgument) return status;
  table.mark_appended();
  status.ok() ? step_layers.set_written(layer_idx) : step_layers.set_failed(layer_idx);
  return status;
}

Status KvCache::append(int32_t layer_idx, const TensorView& k, const TensorView& v,
                       StreamHandle stream) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  return impl_->append(layer_idx, k, v, stream);
}

Status KvCache::shrink_step(std::span<const int32_t> new_tokens) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  LD_RETURN_IF_ERROR(impl_->step_layers.check_all_pending());
  LD_RETURN_IF_ERROR(impl_->table.shrink_step(new_tokens));
  impl_->is_step_shrunk = true;
  return {};
}

Status KvCache::mark_appended(int32_t layer_idx) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  LD_RETURN_IF_ERROR(impl_->check_writable("mark_appended", layer_idx));
  impl_->table.mark_appended();
  impl_->step_layers.set_written(layer_idx);
  return {};
}

Status KvCache::commit() {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  if (impl_->table.step_state() == StepState::kReserved && impl_->max_new_tokens() > 0) {
    LD_RETURN_IF_ERROR(impl_->step_layers.check_all_written());
  }
  return impl_->table.commit();
}

KvLayerView KvCache::layer(int32_t layer_idx) const {
  return impl_ != nullptr ? impl_->layer(layer_idx) : KvLayerView{};
}

Status KvCache::Impl::import_run(SequenceId sequence, std::span<const PagedKv> layers,
                                 std::span<const int32_t> block_table, int64_t token,
                                 int64_t num_tokens, StreamHandle stream) {
  import_step.set(0, {static_cast<int32_t>(token + num_tokens), static_cast<int32_t>(num_tokens),
                      sequence, table.pages(sequence)});
  LD_RETURN_IF_ERROR(import_step.upload(1, stream));
  for (size_t l = 0; l < layers.size(); ++l) {
    AppendArgs args{.kv = pools.view(static_cast<int32_t>(l)),
                    .batch = import_step.view(),
                    .k = import_run_view(layers[l].k, block_table, token, num_tokens),
                    .v = {}};
    if (desc.format.op == Op::kGqa) {
      args.v = import_run_view(layers[l].v, block_table, token, num_tokens);
    }
    LD_RETURN_IF_ERROR(append_kv(args, device, stream));
  }
  return {};
}

Status KvCache::Impl::import_dense(SequenceId sequence, std::span<const PagedKv> layers,
                                   std::span<const int32_t> block_table, int64_t kv_len,
                                   StreamHandle stream) {
  LD_RETURN_IF_ERROR(validate_import(desc.format, desc.num_layers, layers, block_table, kv_len));
  LD_RETURN_IF_ERROR(table.begin_import(sequence, kv_len));
  for (int64_t token = 0; token < kv_len;) {
    const int64_t num_tokens = import_run_tokens(desc.format, layers, block_table, token, kv_len);
    Status status = import_run(sequence, layers, block_table, token, num_tokens, stream);
    if (!status.ok()) {
      table.cancel_import(sequence);
      return status;
    }
    token += num_tokens;
  }
  table.finish_import(sequence, kv_len);
  return {};
}

Status KvCache::import_dense(SequenceId sequence, std::span<const PagedKv> layers,
                             std::span<const int32_t> block_table, int64_t kv_len,
                             StreamHandle stream) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  return impl_->import_dense(sequence, layers, block_table, kv_len, stream);
}

}  // namespace longdecode
