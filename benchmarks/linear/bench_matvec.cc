// y = W x for every weight format beside a plain read of W's bytes, in turn and with cold caches
// (flushed by 8 x the last-level cache). One JSON row per format on stdout.
//
//   bench_matvec [rows (32768)] [cols (4096)] [threads (all)] [samples (5)]
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "benchmarks/harness/timing.h"
#include "longdecode/attention.h"
#include "runner/linear/matvec.h"
#include "tests/support/random_weights.h"

namespace {

using namespace longdecode;  // NOLINT: a program

// In huge pages like the memory of the plain read: translations of 4 KB would be measured instead
// (virtual machine: F32 0.3 of the plain read in place of 0.9).
class HugeBuffer {
 public:
  explicit HugeBuffer(size_t num_bytes) : num_bytes_(num_bytes) {
    constexpr size_t kPage = size_t{2} << 20;
    const size_t rounded = (num_bytes / kPage + 1) * kPage;
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(kPage, rounded));
    if (memory_ == nullptr) std::abort();
    madvise(memory_, rounded, MADV_HUGEPAGE);
  }
  ~HugeBuffer() { std::free(memory_); }
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  uint8_t* data() const { return memory_; }
  size_t size() const { return num_bytes_; }

 private:
  uint8_t* memory_ = nullptr;
  size_t num_bytes_ = 0;
};

struct Options {
  int64_t num_rows = 32768;
  int64_t num_cols = 4096;
  int32_t num_threads = 0;
  int32_t num_samples = 5;
};

// Times of the product and of the read, taken in turn.
int bench_type(const Options& options, runner::GgmlType type, bench::Timer* timer) {
  std::mt19937 random(1);
  const std::vector<uint8_t> row =
      tests::random_weights(type, 16 * options.num_cols, 0.1f, &random);
  const HugeBuffer bytes(row.size() * static_cast<size_t>(options.num_rows / 16));
  for (size_t at = 0; at < bytes.size(); at += row.size())
    std::copy(row.begin(), row.end(), bytes.data() + at);
  const runner::Matrix w{type, options.num_rows, options.num_cols, bytes.data()};
  const std::vector<float> x(static_cast<size_t>(options.num_cols), 0.5f);
  std::vector<float> y(static_cast<size_t>(options.num_rows));
  runner::MatvecInput input;
  std::vector<double> product_us, read_us;
  for (int32_t i = 0; i < options.num_samples; ++i) {
    const auto product = timer->sample_us([&](StreamHandle) {
      input.set(x.data(), 1, options.num_cols, runner::x_form(type, input.isa()));
      const runner::Product products[] = {{&w, y.data()}};
      runner::matvec(products, input, options.num_threads);
      return Status();
    });
    const auto num_bytes = static_cast<int64_t>(bytes.size());
    const auto read =
        timer->sample_us([&](StreamHandle stream) { return timer->read_floor(num_bytes, stream); });
    if (!product.ok() || !read.ok()) return 1;
    product_us.push_back(*product);
    read_us.push_back(*read);
  }
  const double product = bench::median(product_us);
  const double read = bench::median(read_us);
  fmt::print(
      "{{\"type\": \"{}\", \"rows\": {}, \"cols\": {}, \"threads\": {}, \"time_us\": {:.0f}, "
      "\"gbps\": {:.1f}, \"read_gbps\": {:.1f}, \"of_read\": {:.2f}, \"l2\": \"{}\"}}\n",
      runner::ggml_type_info(type).name, options.num_rows, options.num_cols, options.num_threads,
      product, static_cast<double>(bytes.size()) / product * 1e-3,
      static_cast<double>(bytes.size()) / read * 1e-3, read / product, timer->l2());
  return std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (argc > 1) options.num_rows = std::atoll(argv[1]) / 16 * 16;
  if (argc > 2) options.num_cols = std::atoll(argv[2]) / 256 * 256;
  if (argc > 3) options.num_threads = std::atoi(argv[3]);
  if (argc > 4) options.num_samples = std::atoi(argv[4]);
  auto device = detect_device(DeviceType::kCpu);
  if (!device.ok() || options.num_rows < 16 || options.num_cols < 256) {
    fmt::print(stderr, "usage: bench_matvec [rows >= 16] [cols >= 256] [threads] [samples]\n");
    return 2;
  }
  if (options.num_threads > 0) device->num_threads = options.num_threads;
  options.num_threads = device->num_threads;
  const auto timer =
      bench::make_timer(*device, bench::Timing::kWall, bench::default_flush_bytes(*device),
                        options.num_rows * options.num_cols * 4);
  if (!timer.ok()) {
    fmt::print(stderr, "{}\n", timer.status().message());
    return 1;
  }
  for (const runner::GgmlType type : tests::kAllTypes) {
    if (bench_type(options, type, timer->get()) != 0) return 1;
  }
  return 0;
}
