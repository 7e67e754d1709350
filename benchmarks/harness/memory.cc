#include "benchmarks/harness/memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace longdecode::bench {
namespace {

int64_t meminfo_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  std::string rest;
  while (file >> name >> kib && std::getline(file, rest)) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return -1;
}

// -1: no such file, or "max".
int64_t read_number(const char* path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

}  // namespace

int64_t available_memory_bytes() {
  const int64_t available = meminfo_available_bytes();
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max");
  const int64_t used = read_number("/sys/fs/cgroup/memory.current");
  if (limit < 0 || used < 0) return available;
  const int64_t left = std::max<int64_t>(limit - used, 0);
  return available < 0 ? left : std::min(available, left);
}

}  // namespace longdecode::bench
