#include "cache/page_pool.h"

#include <numeric>

namespace longdecode {

PagePool::PagePool(int32_t num_pages) : ref_counts_(num_pages, 0), free_pages_(num_pages) {
  std::iota(free_pages_.rbegin(), free_pages_.rend(), 0);  // low ids are taken first
}

int32_t PagePool::take() {
  const int32_t page = free_pages_.back();
  free_pages_.pop_back();
  ref_counts_[page] = 1;
  return page;
}

void PagePool::release(int32_t page) {
  if (--ref_counts_[page] == 0) free_pages_.push_back(page);
}

}  // namespace longdecode
