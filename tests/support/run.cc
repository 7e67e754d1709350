#include "tests/support/run.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "base/float_convert.h"
#include "ref/decode.h"

namespace longdecode::testing {
namespace {

int64_t max_kv_len(const DecodeArgs& args) {
  return *std::max_element(args.batch.kv_lens, args.batch.kv_lens + args.batch.batch);
}

// Buffers for everything that a run writes, poisoned.
class OutputBuffers {
 public:
  OutputBuffers(const DecodeDesc& desc, const DecodeArgs& args, bool statistics) {
    view_ = args.q;
    view_.shape[3] = desc.format.value_dim;
    // The same gaps as Q has, behind rows of value_dim elements.
    const int64_t gap = args.q.shape[2] == 1 ? 0 : args.q.stride[2] - args.q.shape[3];
    view_.stride[3] = 1;
    view_.stride[2] = view_.shape[3] + gap;
    view_.stride[1] = view_.shape[2] * view_.stride[2] + gap;
    view_.stride[0] = view_.shape[1] * view_.stride[1] + gap;
    o_ = GuardedBuffer(view_.shape[0] * view_.stride[0] * dtype_bytes(view_.dtype));
    view_.data = o_.data();
    rows_ = view_.shape[0] * view_.shape[1] * view_.shape[2];
    lse_ = GuardedBuffer(rows_ * 4);
    if (!statistics) return;
    const int64_t heads = view_.shape[0] * desc.format.num_kv_heads;
    for (GuardedBuffer* counter : {&scanned_, &attended_, &bytes_}) {
      *counter = GuardedBuffer(heads * 8);
    }
    pseudo_max_ = GuardedBuffer(rows_ * 4);
    bound_ = GuardedBuffer(rows_ * 4);
    tiles_stride_ = (max_kv_len(args) + 32 * kTileTokens - 1) / (32 * kTileTokens) + 1;
    tiles_ = GuardedBuffer(heads * tiles_stride_ * 4);
  }

  void attach(DecodeArgs* args) {
    args->o = view_;
    args->lse = lse_.data<float>();
    if (tiles_stride_ == 0) return;
    args->stats.tokens_scanned = scanned_.data<int64_t>();
    args->stats.tokens_attended = attended_.data<int64_t>();
    args->stats.bytes_read = bytes_.data<int64_t>();
    args->stats.pseudo_max = pseudo_max_.data<float>();
    args->stats.dropped_mass_bound = bound_.data<float>();
    args->stats.kept_tiles = tiles_.data<uint32_t>();
    args->stats.kept_tiles_stride = tiles_stride_;
  }

  void read(const DecodeDesc& desc, const DecodeArgs& args, Outputs* outputs) {
    outputs->batch = args.batch.batch;
    read_rows(outputs);
    const auto as_doubles = [&](GuardedBuffer* buffer) {
      const float* from = buffer->data<float>();
      return std::vector<double>(from, from + buffer->num_bytes() / 4);
    };
    const auto as_counts = [&](GuardedBuffer* buffer) {
      const int64_t* from = buffer->data<int64_t>();
      return std::vector<int64_t>(from, from + buffer->num_bytes() / 8);
    };
    outputs->lse = as_doubles(&lse_);
    outputs->pseudo_max = as_doubles(&pseudo_max_);
    outputs->dropped_mass_bound = as_doubles(&bound_);
    outputs->tokens_scanned = as_counts(&scanned_);
    outputs->tokens_attended = as_counts(&attended_);
    outputs->bytes_read = as_counts(&bytes_);
    for (GuardedBuffer* b :
         {&o_, &lse_, &scanned_, &attended_, &bytes_, &pseudo_max_, &bound_, &tiles_}) {
      if (!b->canaries_intact()) outputs->damage = "the run wrote outside an output buffer; ";
    }
    if (tiles_stride_ == 0 || desc.method != Method::kFfd) return;
    const int32_t heads = desc.format.num_kv_heads;
    for (int32_t b = 0; b < args.batch.batch; ++b) {
      outputs->tiles.emplace_back(tiles_.data<uint32_t>() + b * heads * tiles_stride_,
                                  tiles_stride_, heads, args.batch.kv_lens[b]);
    }
  }

 private:
  // Rows to outputs->o and o_bits; the gaps between them must still be poison.
  void read_rows(Outputs* outputs) {
    const int64_t words = dtype_bytes(view_.dtype) / 2;
    std::vector<uint8_t> is_row(static_cast<size_t>(o_.num_bytes()), 0);
    for (int64_t i = 0; i < rows_; ++i) {
      const int64_t head = i % view_.shape[2];
      const int64_t query = i / view_.shape[2] % view_.shape[1];
      const int64_t b = i / view_.shape[2] / view_.shape[1];
      const int64_t offset = b * view_.stride[0] + query * view_.stride[1] + head * view_.stride[2];
      for (int64_t c = 0; c < view_.shape[3]; ++c) {
        outputs->o.push_back(
            static_cast<double>(load_element(view_.data, view_.dtype, offset + c)));
      }
      const int64_t begin = offset * dtype_bytes(view_.dtype);
      const int64_t count = view_.shape[3] * dtype_bytes(view_.dtype);
      const size_t at = outputs->o_bits.size();
      outputs->o_bits.resize(at + static_cast<size_t>(view_.shape[3] * words));
      std::memcpy(outputs->o_bits.data() + at, o_.data() + begin, static_cast<size_t>(count));
      std::fill_n(is_row.begin() + begin, count, uint8_t{1});
    }
    for (int64_t i = 0; i < o_.num_bytes(); ++i) {
      if (is_row[static_cast<size_t>(i)] == 0 && o_.data()[i] != kPoisonByte) {
        outputs->damage = "the run wrote between the rows of O; ";
      }
    }
  }

  TensorView view_;
  int64_t rows_ = 0;
  int64_t tiles_stride_ = 0;
  GuardedBuffer o_, lse_, scanned_, attended_, bytes_, pseudo_max_, bound_, tiles_;
};

DecodeFn& other_run_plan() {
  static DecodeFn instance;
  return instance;
}

}  // namespace

void set_run_plan(DecodeFn decode) { other_run_plan() = std::move(decode); }

bool has_run_plan() { return other_run_plan() != nullptr; }

const DeviceInfo& cpu_device() {
  static const DeviceInfo device = [] {
    Result<DeviceInfo> detected = detect_device(DeviceType::kCpu);
    if (!detected.ok()) return DeviceInfo{};
    const char* without_amx = std::getenv("LONGDECODE_TEST_WITHOUT_AMX");
    // Nor what only CPUs like those with AMX have: keys of planes are made fp32, not scored in
    // place.
    if (without_amx != nullptr && *without_amx == '1') {
      detected->has_amx_bf16 = detected->has_avx512_vnni = false;
    }
    return *detected;
  }();
  return device;
}

Outputs run_plan(const DecodeDesc& desc, const DecodeArgs& args, const RunOptions& options) {
  if (has_run_plan()) return other_run_plan()(desc, args);
  const char* kernel = std::getenv("LONGDECODE_TEST_KERNEL");
  if (kernel != nullptr && std::strcmp(kernel, "reference") == 0) return run_reference(desc, args);
  Outputs outputs;
  DeviceInfo device = cpu_device();
  if (options.num_threads > 0) device.num_threads = options.num_threads;
  Result<DecodePlan> plan = DecodePlan::create(desc, device);
  if (!plan.ok()) {
    outputs.status = plan.status();
    return outputs;
  }
  const bool sparse = options.sparse_workspace;
  GuardedBuffer workspace(sparse ? 0 : plan->workspace_bytes());
  const SparseMemory sparse_workspace(sparse ? plan->workspace_bytes() : 1);
  outputs.status = plan->init(sparse ? sparse_workspace.data() : workspace.data(), nullptr);
  if (!outputs.status.ok()) return outputs;
  for (int32_t i = 0; i < options.num_runs; ++i) {
    OutputBuffers buffers(desc, args, options.statistics);
    DecodeArgs run_args = args;
    buffers.attach(&run_args);
    outputs = {};
    outputs.status = plan->run(run_args, nullptr);
    buffers.read(desc, run_args, &outputs);
    if (!workspace.canaries_intact()) outputs.damage = "the run wrote outside the workspace; ";
  }
  return outputs;
}

Outputs run_with(const DecodeDesc& desc, const DecodeArgs& args, const ExecuteFn& execute) {
  OutputBuffers buffers(desc, args, true);
  DecodeArgs run_args = args;
  buffers.attach(&run_args);
  Outputs outputs;
  outputs.status = execute(desc, run_args);
  if (outputs.status.ok()) buffers.read(desc, run_args, &outputs);
  return outputs;
}

void set_sequence(const DecodeDesc& desc, const DecodeArgs& args, int32_t batch_idx,
                  const ref::AttentionOutput& attention, Outputs* outputs) {
  const size_t num_rows = static_cast<size_t>(args.query_len * desc.num_q_heads);
  const size_t num_elements = num_rows * static_cast<size_t>(desc.format.value_dim);
  const auto b = static_cast<size_t>(batch_idx);
  const auto batch = static_cast<size_t>(args.batch.batch);
  const size_t words = static_cast<size_t>(dtype_bytes(desc.q_dtype)) / 2;
  outputs->o.resize(batch * num_elements);
  outputs->o_bits.resize(batch * num_elements * words);
  outputs->lse.resize(batch * num_rows);
  for (size_t i = 0; i < num_elements; ++i) {
    const auto at = static_cast<int64_t>(b * num_elements + i);
    const double o = i < attention.o.size() ? attention.o[i] : 0.0;
    store_element(outputs->o_bits.data(), desc.q_dtype, at, static_cast<float>(o));
    outputs->o[static_cast<size_t>(at)] =
        static_cast<double>(load_element(outputs->o_bits.data(), desc.q_dtype, at));
  }
  for (size_t r = 0; r < num_rows; ++r) {
    outputs->lse[b * num_rows + r] =
        r < attention.lse.size() ? attention.lse[r] : -std::numeric_limits<double>::infinity();
  }
}

Outputs run_reference(const DecodeDesc& desc, const DecodeArgs& args) {
  Outputs outputs;
  outputs.batch = args.batch.batch;
  const auto append = [](auto* to, const auto& from) {
    to->insert(to->end(), from.begin(), from.end());
  };
  for (int32_t b = 0; b < args.batch.batch; ++b) {
    const ref::DecodeResult result = ref::decode(desc, args, b);
    set_sequence(desc, args, b, result.attention, &outputs);
    if (desc.method != Method::kFfd) continue;
    append(&outputs.pseudo_max, result.pseudo_max);
    append(&outputs.dropped_mass_bound, result.dropped_mass_bound);
    append(&outputs.tokens_attended, result.tokens_attended);
    outputs.tiles.push_back(result.tiles);
  }
  return outputs;
}

}  // namespace longdecode::testing
