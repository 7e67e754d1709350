#include "tests/gpu/device_problem.h"

#include <algorithm>
#include <cstring>

#include "tests/gpu/mla_workload.h"
#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

using gpu_test::check_cuda;

constexpr uint8_t kCanary = 0x5a;

// Elements from the first to the last of dimensions first_dim ....
int64_t span_elements(const TensorView& view, int32_t first_dim) {
  int64_t last = 0;
  for (int32_t d = first_dim; d < view.rank; ++d) {
    if (view.shape[d] > 1) last += (view.shape[d] - 1) * view.stride[d];
  }
  return last + 1;
}

int64_t span_bytes(const TensorView& view, int32_t first_dim = 0) {
  return span_elements(view, first_dim) * dtype_bytes(view.dtype);
}

// Bytes of a plane with `pages` pages.
int64_t plane_bytes(int64_t pages, int64_t page_stride_bytes, int64_t page_bytes) {
  return (pages - 1) * page_stride_bytes + page_bytes;
}

DeviceInfo& the_test_device() {
  static DeviceInfo device;
  return device;
}

}  // namespace

void set_test_device(const DeviceInfo& device) { the_test_device() = device; }
const DeviceInfo& test_device() { return the_test_device(); }

DeviceMemory::DeviceMemory(int64_t num_bytes) : num_bytes_(num_bytes) {
  const int64_t size = num_bytes + 2 * kCanaryBytes;
  check_cuda(cudaMalloc(reinterpret_cast<void**>(&memory_), size), "cudaMalloc");
  check_cuda(cudaMemset(memory_, kCanary, size), "cudaMemset");
  check_cuda(cudaMemset(data(), kPoisonByte, num_bytes), "cudaMemset");
}

DeviceMemory::~DeviceMemory() { cudaFree(memory_); }

bool DeviceMemory::canaries_intact() const {
  std::vector<uint8_t> canaries(2 * kCanaryBytes);
  check_cuda(cudaMemcpy(canaries.data(), memory_, kCanaryBytes, cudaMemcpyDefault), "canary");
  check_cuda(cudaMemcpy(canaries.data() + kCanaryBytes, memory_ + kCanaryBytes + num_bytes_,
                        kCanaryBytes, cudaMemcpyDefault),
             "canary");
  return std::all_of(canaries.begin(), canaries.end(), [](uint8_t x) { return x == kCanary; });
}

void DeviceMemory::copy_from(const void* host, int64_t num_bytes, int64_t offset) {
  check_cuda(cudaMemcpy(data() + offset, host, num_bytes, cudaMemcpyDefault), "upload");
}

void DeviceMemory::copy_to(void* host, int64_t num_bytes) const {
  check_cuda(cudaMemcpy(host, data(), num_bytes, cudaMemcpyDefault), "download");
}

DeviceProblem::DeviceProblem(const DecodeDesc& desc, const DecodeArgs& host,
                             const DeviceInfo& device) {
  desc_ = desc;
  args_ = host;
  auto plan = DecodePlan::create(desc, device);
  status_ = plan.status();
  if (!status_.ok()) return;
  plan_ = std::make_unique<DecodePlan>(std::move(plan).value());
  status_ = plan_->init(add(plan_->workspace_bytes()), nullptr);
  const BatchView& batch = host.batch;
  args_.batch.block_table = static_cast<int32_t*>(add(batch.batch * batch.block_table_stride * 4));
  args_.batch.kv_lens = static_cast<int32_t*>(add(batch.batch * 4));
  if (batch.query_lens != nullptr)
    args_.batch.query_lens = static_cast<int32_t*>(add(batch.batch * 4));
  if (batch.slots != nullptr) args_.batch.slots = static_cast<int32_t*>(add(batch.batch * 4));
  args_.q.data = add(span_bytes(host.q));
  if (host.sink_logits != nullptr)
    args_.sink_logits = static_cast<float*>(add(4 * desc.num_q_heads));
  make_pools(host);
  make_outputs(host);
  upload(host);
}

void* DeviceProblem::add(int64_t num_bytes) {
  memory_.push_back(std::make_unique<DeviceMemory>(num_bytes));
  return memory_.back()->data();
}

void DeviceProblem::make_pools(const DecodeArgs& host) {
  const KvLayerView& kv = host.kv;
  for (auto [from, to] : {std::pair{&kv.k, &args_.kv.k}, std::pair{&kv.v, &args_.kv.v},
                          std::pair{&kv.recent_k, &args_.kv.recent_k}}) {
    if (from->data != nullptr) to->data = add(span_bytes(*from));
  }
  if (kv.chunks == nullptr) return;
  const int64_t heads = kv.format.num_kv_heads;
  args_.kv.chunks = static_cast<uint8_t*>(
      add(plane_bytes(kv.num_pages, kv.chunk_page_stride_bytes, heads * kv.format.chunk_bytes())));
  args_.kv.residuals = static_cast<uint8_t*>(add(plane_bytes(
      kv.num_pages, kv.residual_page_stride_bytes, heads * kv.format.residual_bytes())));
}

template <typename F>
void DeviceProblem::for_each_output(const DecodeArgs& host, const F& visit) const {
  const int64_t rows = host.o.shape[0] * host.o.shape[1] * host.o.shape[2];
  const int64_t pairs = int64_t{host.batch.batch} * host.kv.format.num_kv_heads;
  // As run_with allocates O: gaps included, behind the last row too.
  visit(host.o.data, args_.o.data, host.o.shape[0] * host.o.stride[0] * dtype_bytes(host.o.dtype));
  visit(host.lse, args_.lse, rows * 4);
  visit(host.stats.tokens_scanned, args_.stats.tokens_scanned, pairs * 8);
  visit(host.stats.tokens_attended, args_.stats.tokens_attended, pairs * 8);
  visit(host.stats.bytes_read, args_.stats.bytes_read, pairs * 8);
  visit(host.stats.pseudo_max, args_.stats.pseudo_max, rows * 4);
  visit(host.stats.dropped_mass_bound, args_.stats.dropped_mass_bound, rows * 4);
  visit(host.stats.kept_tiles, args_.stats.kept_tiles, pairs * host.stats.kept_tiles_stride * 4);
}

void DeviceProblem::make_outputs(const DecodeArgs& host) {
  std::vector<int64_t> sizes;
  for_each_output(host, [&](const void*, const void*, int64_t size) { sizes.push_back(size); });
  const auto at = [&](size_t i) { return add(sizes[i]); };
  args_.o.data = at(0);
  args_.lse = static_cast<float*>(at(1));
  args_.stats.tokens_scanned = static_cast<int64_t*>(at(2));
  args_.stats.tokens_attended = static_cast<int64_t*>(at(3));
  args_.stats.bytes_read = static_cast<int64_t*>(at(4));
  args_.stats.pseudo_max = static_cast<float*>(at(5));
  args_.stats.dropped_mass_bound = static_cast<float*>(at(6));
  args_.stats.kept_tiles = static_cast<uint32_t*>(at(7));
}

void DeviceProblem::upload(const DecodeArgs& host) {
  const auto copy = [](void* to, const void* from, int64_t num_bytes) {
    check_cuda(cudaMemcpy(to, from, num_bytes, cudaMemcpyDefault), "upload");
  };
  const auto copy_ints = [&](const int32_t* to, const int32_t* from, int64_t count) {
    if (from != nullptr) copy(const_cast<int32_t*>(to), from, 4 * count);
  };
  const BatchView& batch = host.batch;
  copy_ints(args_.batch.block_table, batch.block_table, batch.batch * batch.block_table_stride);
  copy_ints(args_.batch.kv_lens, batch.kv_lens, batch.batch);
  copy_ints(args_.batch.query_lens, batch.query_lens, batch.batch);
  copy_ints(args_.batch.slots, batch.slots, batch.batch);
  copy(args_.q.data, host.q.data, span_bytes(host.q));
  if (host.sink_logits != nullptr) {
    copy(const_cast<float*>(args_.sink_logits), host.sink_logits, 4 * desc_.num_q_heads);
  }
  const KvLayerView& kv = host.kv;
  if (kv.recent_k.data != nullptr) {
    copy(args_.kv.recent_k.data, kv.recent_k.data, span_bytes(kv.recent_k));
  }
  const auto copy_page = [&](void* to, const void* from, int64_t offset, int64_t num_bytes) {
    copy(static_cast<uint8_t*>(to) + offset, static_cast<const uint8_t*>(from) + offset, num_bytes);
  };
  const int64_t heads = kv.format.num_kv_heads;
  for (int32_t b = 0; b < batch.batch; ++b) {
    const int64_t pages = (batch.kv_lens[b] + kv.format.page_size - 1) / kv.format.page_size;
    for (int64_t i = 0; i < pages; ++i) {
      const int64_t page = batch.block_table[b * batch.block_table_stride + i];
      for (auto [from, to] : {std::pair{&kv.k, &args_.kv.k}, std::pair{&kv.v, &args_.kv.v}}) {
        if (from->data == nullptr) continue;
        const int64_t stride = from->shape[0] > 1 ? from->stride[0] : 0;
        copy_page(to->data, from->data, page * stride * dtype_bytes(from->dtype),
                  span_bytes(*from, 1));
      }
      if (kv.chunks == nullptr) continue;
      copy_page(args_.kv.chunks, kv.chunks, page * kv.chunk_page_stride_bytes,
                heads * kv.format.chunk_bytes());
      copy_page(args_.kv.residuals, kv.residuals, page * kv.residual_page_stride_bytes,
                heads * kv.format.residual_bytes());
    }
  }
  for_each_output(host, [&](const void* from, void* to, int64_t size) { copy(to, from, size); });
}

Status DeviceProblem::run(cudaStream_t stream) { return plan_->run(args_, stream); }

void DeviceProblem::download(const DecodeArgs& host) const {
  check_cuda(cudaDeviceSynchronize(), "run");
  for_each_output(host, [&](void* to, const void* from, int64_t size) {
    check_cuda(cudaMemcpy(to, from, size, cudaMemcpyDefault), "download");
  });
}

bool DeviceProblem::canaries_intact() const {
  return std::all_of(memory_.begin(), memory_.end(),
                     [](const auto& memory) { return memory->canaries_intact(); });
}

CapturedRun::CapturedRun(const DeviceInfo& device) : device_(device) {
  check_cuda(cudaStreamCreate(&stream_), "stream");
}

CapturedRun::~CapturedRun() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  cudaStreamDestroy(stream_);
}

Status CapturedRun::capture(const DecodeDesc& desc, const DecodeArgs& sized) {
  problem_ = std::make_unique<DeviceProblem>(desc, sized, device_);
  if (!problem_->status().ok()) return problem_->status();
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
  const Status status = problem_->run(stream_);
  cudaGraph_t captured;
  check_cuda(cudaStreamEndCapture(stream_, &captured), "capture");
  if (!status.ok()) return status;
  check_cuda(cudaGraphInstantiate(&graph_, captured, 0), "instantiate");
  check_cuda(cudaGraphDestroy(captured), "destroy");
  return Status();
}

Status CapturedRun::run(const DecodeDesc& desc, const DecodeArgs& host,
                        const KvLayerView& capacity) {
  if (graph_ == nullptr) {
    DecodeArgs sized = host;
    sized.kv = capacity;
    const Status status = capture(desc, sized);
    if (!status.ok()) return status;
  }
  problem_->upload(host);
  check_cuda(cudaGraphLaunch(graph_, stream_), "replay");
  problem_->download(host);
  return Status();
}

void set_weight_rounding(DType dtype, Outputs* outputs) {
  outputs->weight_unit = dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
  outputs->weight_floor = dtype == DType::kF16 ? 0x1p-25 : 0.0;
}

Outputs run_on_device(const DecodeDesc& desc, const DecodeArgs& args, const DeviceInfo& device) {
  std::unique_ptr<DeviceProblem> problem;
  const auto execute = [&](const DecodeDesc& d, const DecodeArgs& host) -> Status {
    if (problem == nullptr) {
      problem = std::make_unique<DeviceProblem>(d, host, device);
    } else {
      problem->upload(host);
    }
    if (!problem->status().ok()) return problem->status();
    const Status status = problem->run(nullptr);
    problem->download(host);
    return status;
  };
  Outputs first = run_with(desc, args, execute);
  if (!first.status.ok()) return first;
  const Outputs second = run_with(desc, args, execute);
  const std::string difference = same_bits(first, second);
  if (!difference.empty()) first.damage += "a second run differs: " + difference + "; ";
  if (!problem->canaries_intact()) first.damage += "the run wrote outside its memory; ";
  set_weight_rounding(desc.q_dtype, &first);
  return first;
}

}  // namespace longdecode::testing
