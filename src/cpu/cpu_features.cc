#include "cpu/cpu_features.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace longdecode::cpu {
namespace {

int32_t usable_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  return static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
}

void read_memory_sizes([[maybe_unused]] DeviceInfo& info) {
#if defined(__linux__)
  info.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  info.last_level_cache_bytes = std::max({int64_t{0}, int64_t{sysconf(_SC_LEVEL2_CACHE_SIZE)},
                                          int64_t{sysconf(_SC_LEVEL3_CACHE_SIZE)}});
#endif
}

std::string model_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

#if defined(__x86_64__)
uint64_t enabled_register_states() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

bool may_use_amx_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

void read_instruction_sets(DeviceInfo& info) {
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  constexpr uint32_t kOsXsave = 1u << 27;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kOsXsave) == 0) return;
  const uint64_t states = enabled_register_states();
  constexpr uint64_t kAvx512State = 0xe6;  // SSE, AVX, opmask, upper zmm, zmm16-31
  constexpr uint64_t kAmxState = 0x60000;  // tile configuration, tile data
  if ((states & kAvx512State) != kAvx512State) return;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return;
  const uint32_t num_subleaves = eax;
  info.has_avx512_vnni = (ecx & (1u << 11)) != 0;
  const bool has_amx = (edx & (1u << 22)) != 0 && (edx & (1u << 24)) != 0;
  info.has_amx_bf16 = has_amx && (states & kAmxState) == kAmxState && may_use_amx_tiles();
  if (num_subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) {
    info.has_avx512_bf16 = (eax & (1u << 5)) != 0;
  }
}
#else
void read_instruction_sets(DeviceInfo&) {}
#endif

}  // namespace

DeviceInfo detect_cpu() {
  DeviceInfo info;
  info.type = DeviceType::kCpu;
  std::snprintf(info.name, sizeof(info.name), "%s", model_name().c_str());
  info.num_threads = std::min(usable_cpus(), kMaxThreads);
  read_memory_sizes(info);
  read_instruction_sets(info);
  return info;
}

}  // namespace longdecode::cpu
