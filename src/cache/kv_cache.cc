// KvCache: the host bookkeeping (SequenceTable) joined with device memory (LayerPools, StepArrays).
// Not thread-safe: calls on one cache must not overlap. Copies that reserve, fork and import need
// are enqueued on the default stream.
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

}  // namespace

struct KvCache::Impl {
  KvCacheDesc desc;
  DeviceInfo device;
  LayerPools pools;
  SequenceTable table;
  StepArrays step;
  StepArrays import_step;  // batch 1

  CopyPage copy_page() {
    return [this](int32_t from, int32_t to) { return pools.copy_page(from, to); };
  }
  // The view must not name pages that a sequence has given up.
  void drop_stale_view() {
    if (table.step_state() == StepState::kNone) step.clear();
  }
  Status import_run(SequenceId sequence, std::span<const PagedKv> layers,
                    std::span<const int32_t> block_table, int64_t token, int64_t num_tokens,
                    StreamHandle stream);
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
    return KvCache(
        std::unique_ptr<Impl>(new Impl{desc, device, std::move(pools), SequenceTable(desc),
                                       std::move(step), std::move(import_step)}));
  } catch (const std::exception&) {
    return out_of_memory("the tables of max_sequences {} with max_kv_len {} do not fit",
                         desc.max_sequences, desc.max_kv_len);
  }
}

const KvCacheDesc& KvCache::desc() const { return impl_->desc; }

int64_t KvCache::num_free_pages() const { return impl_->table.num_free_pages(); }

int64_t KvCache::memory_bytes() const {
  return impl_->pools.memory_bytes() + impl_->table.memory_bytes() + impl_->step.memory_bytes() +
         impl_->import_step.memory_bytes();
}

Result<SequenceId> KvCache::add_sequence() { return impl_->table.add(); }

Status KvCache::free_sequence(SequenceId sequence) {
  Status status = impl_->table.free(sequence);
  impl_->drop_stale_view();
  return status;
}

Result<int64_t> KvCache::kv_len(SequenceId sequence) const { return impl_->table.kv_len(sequence); }

Result<SequenceId> KvCache::fork(SequenceId parent) {
  LD_ASSIGN_OR_RETURN(const SequenceId child, impl_->table.fork(parent, impl_->copy_page()));
  if (Status status = impl_->pools.copy_ring(parent, child); !status.ok()) {
    LD_RETURN_IF_ERROR(impl_->table.free(child));
    return status;
  }
  return child;
}

Status KvCache::truncate(SequenceId sequence, int64_t num_tokens) {
  Status status = impl_->table.truncate(sequence, num_tokens);
  impl_->drop_stale_view();
  return status;
}

Status KvCache::reserve(std::span<const SequenceId> sequences,
                        std::span<const int32_t> new_tokens) {
  SequenceTable& table = impl_->table;
  Status status = table.reserve(sequences, new_tokens, impl_->copy_page());
  impl_->drop_stale_view();
  LD_RETURN_IF_ERROR(status);
  for (size_t b = 0; b < sequences.size(); ++b) {
    LD_ASSIGN_OR_RETURN(const int64_t kv_len, table.kv_len(sequences[b]));
    impl_->step.set(static_cast<int32_t>(b),
                    {static_cast<int32_t>(kv_len) + new_tokens[b], new_tokens[b], sequences[b],
                     table.pages(sequences[b])});
  }
  status = impl_->step.upload(static_cast<int32_t>(sequences.size()), nullptr);
  if (!status.ok()) table.cancel_step();
  return status;
}

const BatchView& KvCache::step() const { return impl_->step.view(); }

Status KvCache::append(int32_t layer_idx, const TensorView& k, const TensorView& v,
                       StreamHandle stream) {
  SequenceTable& table = impl_->table;
  if (table.step_state() != StepState::kReserved) {
    return failed_precondition(
        "append without a reserved step: call reserve first (freeing or "
        "truncating a sequence of the step drops it)");
  }
  if (layer_idx < 0 || layer_idx >= impl_->desc.num_layers) {
    return invalid_argument("layer_idx is {}; allowed: 0 to {}", layer_idx,
                            impl_->desc.num_layers - 1);
  }
  const std::span<const int32_t> new_tokens = table.step_new_tokens();
  const int32_t max_new =
      new_tokens.empty() ? 0 : *std::max_element(new_tokens.begin(), new_tokens.end());
  if (max_new == 0) return {};
  if (k.rank != 4 || k.shape[0] != impl_->step.view().batch || k.shape[1] < max_new) {
    return invalid_argument(
        "k has rank {} and shape [{}, {}, ...]; the reserved step allows rank "
        "4, batch {} and {} new tokens or more",
        k.rank, k.shape[0], k.shape[1], impl_->step.view().batch, max_new);
  }
  AppendArgs args{.kv = layer(layer_idx), .batch = impl_->step.view(), .k = k, .v = v};
  Status status = append_kv(args, impl_->device, stream);
  // An argument that is refused has changed nothing; any other failure may have written.
  if (status.code() != StatusCode::kInvalidArgument) table.mark_appended();
  return status;
}

Status KvCache::commit() { return impl_->table.commit(); }

KvLayerView KvCache::layer(int32_t layer_idx) const {
  if (layer_idx < 0 || layer_idx >= impl_->desc.num_layers) return {};
  return impl_->pools.view(layer_idx);
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

Status KvCache::import_dense(SequenceId sequence, std::span<const PagedKv> layers,
                             std::span<const int32_t> block_table, int64_t kv_len,
                             StreamHandle stream) {
  LD_RETURN_IF_ERROR(
      validate_import(impl_->desc.format, impl_->desc.num_layers, layers, block_table, kv_len));
  LD_RETURN_IF_ERROR(impl_->table.begin_import(sequence, kv_len));
  for (int64_t token = 0; token < kv_len;) {
    const int64_t num_tokens =
        import_run_tokens(impl_->desc.format, layers, block_table, token, kv_len);
    Status status = impl_->import_run(sequence, layers, block_table, token, num_tokens, stream);
    if (!status.ok()) {
      impl_->table.cancel_import(sequence);
      return status;
    }
    token += num_tokens;
  }
  impl_->table.finish_import(sequence, kv_len);
  return {};
}

}  // namespace longdecode
