// mbarriers, named barriers and the programmatic launch dependency: one instruction, one function.
// Compiled for sm_80, functions that are nothing there stand for what is enough there.
#ifndef LONGDECODE_CUDA_PTX_BARRIER_CUH_
#define LONGDECODE_CUDA_PTX_BARRIER_CUH_

#include <cstdint>

namespace longdecode::cuda::ptx {

__device__ __forceinline__ void mbarrier_init(uint32_t s_barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(s_barrier), "r"(count) : "memory");
}

// Makes mbarrier_init visible to the async proxy, which sm_80 does not have.
__device__ __forceinline__ void fence_mbarrier_init() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// sm_90 on.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t s_barrier, uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(s_barrier),
               "r"(num_bytes)
               : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t s_barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(s_barrier) : "memory");
}

// Arrives, without having been counted before, once the thread's cp.async so far have landed.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t s_barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(s_barrier) : "memory");
}

// Does not block.
__device__ __forceinline__ bool mbarrier_test_wait(uint32_t s_barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(s_barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// May block for a while; on sm_80 it does not.
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t s_barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(s_barrier), "r"(parity)
      : "memory");
  return done != 0;
#else
  return mbarrier_test_wait(s_barrier, parity);
#endif
}

// Blocks until the phase of the given parity has completed.
__device__ __forceinline__ void mbarrier_wait(uint32_t s_barrier, uint32_t parity) {
  while (!mbarrier_try_wait(s_barrier, parity)) {
  }
}

__device__ __forceinline__ void named_barrier_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// Does not wait for the others.
__device__ __forceinline__ void named_barrier_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// True in one lane of the whole warp, always the same one. The compiler knows that it is one, so
// that addresses of barriers and bulk copies need no loop over lanes; on sm_80 it does not.
__device__ __forceinline__ bool elect_lane() {
#if __CUDA_ARCH__ >= 900
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n}\n"
      : "=r"(elected));
  return elected != 0;
#else
  return (threadIdx.x & 31) == 0;
#endif
}

// Moves registers between warpgroups (setmaxnreg), by all warps of the warpgroup. sm_90a.
template <int kRegisters>
__device__ __forceinline__ void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Lets the next kernel of the stream start its prologue. Nothing on sm_80, as wait_dependency:
// launches there are not programmatic (host/launch.h).
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before has finished and its writes are visible.
__device__ __forceinline__ void wait_dependency() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace longdecode::cuda::ptx

#endif  // LONGDECODE_CUDA_PTX_BARRIER_CUH_
