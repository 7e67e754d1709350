// Which pages are free, and how many sequences share each of the others. Host only.
#ifndef LONGDECODE_CACHE_PAGE_POOL_H_
#define LONGDECODE_CACHE_PAGE_POOL_H_

#include <cstdint>
#include <vector>

namespace longdecode {

class PagePool {
 public:
  explicit PagePool(int32_t num_pages);

  int32_t num_pages() const { return static_cast<int32_t>(ref_counts_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_pages_.size()); }
  int32_t ref_count(int32_t page) const { return ref_counts_[page]; }

  // A free page, now with one reference. Only while num_free() > 0.
  int32_t take();
  void add_ref(int32_t page) { ++ref_counts_[page]; }
  // Drops one reference; the last one returns the page.
  void release(int32_t page);

 private:
  std::vector<int32_t> ref_counts_;
  std::vector<int32_t> free_pages_;  // a stack; capacity for all pages, so release never allocates
};

}  // namespace longdecode

#endif  // LONGDECODE_CACHE_PAGE_POOL_H_
