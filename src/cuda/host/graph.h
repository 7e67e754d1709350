// CUDA Graphs from what a function enqueues.
#ifndef LONGDECODE_CUDA_HOST_GRAPH_H_
#define LONGDECODE_CUDA_HOST_GRAPH_H_

#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "cuda/host/status.h"

namespace longdecode::cuda {

// What `enqueue`, a function that returns a Status, puts on the stream. The graph is the caller's.
template <typename Enqueue>
Result<cudaGraph_t> capture_graph(cudaStream_t stream, const Enqueue& enqueue) {
  LD_RETURN_IF_ERROR(cuda_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                                 "cudaStreamBeginCapture"));
  const Status enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (!enqueued.ok()) {
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // of the capture that the error has broken
    return enqueued;
  }
  LD_RETURN_IF_ERROR(cuda_status(ended, "cudaStreamEndCapture"));
  return graph;
}

// Destroys the graph; what is executable of it is the caller's.
inline Result<cudaGraphExec_t> instantiate_graph(cudaGraph_t graph) {
  cudaGraphExec_t executable = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  LD_RETURN_IF_ERROR(cuda_status(instantiated, "cudaGraphInstantiate"));
  return executable;
}

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_HOST_GRAPH_H_
