#include "cache/step_arrays.h"

#include <algorithm>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cache/checked_math.h"

namespace longdecode {

Result<StepArrays> StepArrays::create(int32_t max_batch, int64_t width, const Backend& backend,
                                      const DeviceInfo& device) {
  const CheckedSize num_bytes = (CheckedSize(width) + 3) * max_batch * sizeof(int32_t);
  if (num_bytes.overflowed() ||
      (device.memory_bytes > 0 && num_bytes.value() > device.memory_bytes)) {
    return out_of_memory("a block table of {} sequences with {} pages each does not fit", max_batch,
                         width);
  }
  StepArrays arrays;
  arrays.backend_ = &backend;
  arrays.device_ = device;
  arrays.max_batch_ = max_batch;
  arrays.width_ = width;
  LD_ASSIGN_OR_RETURN(arrays.memory_, DeviceBuffer::create(num_bytes.value(), backend, device));
  arrays.host_.assign(num_bytes.value() / sizeof(int32_t), -1);
  arrays.changed_pages_.resize(max_batch);
  const auto* base = arrays.memory_.as<int32_t>();
  arrays.view_.kv_lens = base;
  arrays.view_.query_lens = base + arrays.max_batch_;
  arrays.view_.slots = base + 2 * arrays.max_batch_;
  arrays.view_.block_table = base + 3 * arrays.max_batch_;
  arrays.view_.block_table_stride = width;
  return arrays;
}

void StepArrays::set(int32_t b, const Row& row) {
  host_[b] = row.kv_len;
  host_[max_batch_ + b] = row.query_len;
  host_[2 * max_batch_ + b] = row.slot;
  const auto held = host_.begin() + 3 * max_batch_ + b * width_;
  const auto first = std::mismatch(row.pages.begin(), row.pages.end(), held).first;
  std::copy(first, row.pages.end(), held + (first - row.pages.begin()));
  changed_pages_[b] = {first - row.pages.begin(), row.pages.end() - first};
}

Status StepArrays::upload(int32_t batch, StreamHandle stream) {
  Status status = send_rows(batch, stream);
  if (status.ok()) {
    view_.batch = batch;
  } else {
    view_.batch = 0;
    std::fill(host_.begin(), host_.end(), -1);  // unknown: send everything again next time
  }
  return status;
}

Status StepArrays::send_rows(int32_t batch, StreamHandle stream) const {
  for (int64_t array = 0; array < 3; ++array) {
    LD_RETURN_IF_ERROR(send(array * max_batch_, batch, stream));
  }
  for (int32_t b = 0; b < batch; ++b) {
    const Range& range = changed_pages_[b];
    LD_RETURN_IF_ERROR(send(3 * max_batch_ + b * width_ + range.first, range.count, stream));
  }
  return {};
}

Status StepArrays::send(int64_t first, int64_t count, StreamHandle stream) const {
  if (count == 0) return {};
  return backend_->copy(memory_.as<int32_t>() + first, host_.data() + first,
                        count * static_cast<int64_t>(sizeof(int32_t)), device_, stream);
}

int64_t StepArrays::memory_bytes() const {
  return 2 * static_cast<int64_t>(host_.size() * sizeof(int32_t)) +
         static_cast<int64_t>(changed_pages_.size() * sizeof(Range));
}

}  // namespace longdecode
