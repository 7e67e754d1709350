// The arrays of a BatchView in device memory, at addresses that never change.
#ifndef LONGDECODE_CACHE_STEP_ARRAYS_H_
#define LONGDECODE_CACHE_STEP_ARRAYS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/backend.h"
#include "cache/device_buffer.h"
#include "longdecode/attention.h"

namespace longdecode {

class StepArrays {
 public:
  // Of at most max_batch sequences of at most `width` pages.
  static Result<StepArrays> create(int32_t max_batch, int64_t width, const Backend& backend,
                                   const DeviceInfo& device);

  struct Row {
    int32_t kv_len = 0;
    int32_t query_len = 0;
    int32_t slot = 0;
    std::span<const int32_t> pages;
  };
  // Row b of the next upload; b < max_batch.
  void set(int32_t b, const Row& row);
  // Makes rows 0 .. batch-1 the view. Pages that the device already has are not sent again.
  Status upload(int32_t batch, StreamHandle stream);
  void clear() { view_.batch = 0; }

  const BatchView& view() const { return view_; }
  int64_t memory_bytes() const;  // device and host

 private:
  Status send_rows(int32_t batch, StreamHandle stream) const;
  Status send(int64_t first, int64_t count, StreamHandle stream) const;

  const Backend* backend_ = nullptr;
  DeviceInfo device_;
  int64_t max_batch_ = 0;
  int64_t width_ = 0;
  DeviceBuffer memory_;  // int32: kv_lens, query_lens, slots [max_batch], block table
  // What is, or after upload will be, in memory_. Lives as long as copies from it may be under way.
  std::vector<int32_t> host_;
  struct Range {
    int64_t first = 0;
    int64_t count = 0;
  };
  std::vector<Range> changed_pages_;  // per row, in elements of the row
  BatchView view_;
};

}  // namespace longdecode

#endif  // LONGDECODE_CACHE_STEP_ARRAYS_H_
