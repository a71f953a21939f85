// KeptContext: a thread's current CUDA context, as the driver knows it, is the same when the object ends.
//
// cudaSetDevice(before) would not do: since CUDA 12 it makes a context, of half a gigabyte, on a device that the thread
// may never have used. The driver's own calls restore the previous context, also none.
#pragma once

namespace tributary {

class KeptContext {
 public:
  // The driver's cuCtxGetCurrent and cuCtxSetCurrent; null where there is no driver.
  struct Driver {
    int (*get)(void** context) = nullptr;
    int (*set)(void* context) = nullptr;
  };

  explicit KeptContext(const Driver& driver = loaded()) : driver_(driver) {
    if (!driver_.get || driver_.get(&before_) != 0) before_ = nullptr;  // also where the driver was not called yet
  }
  ~KeptContext() {
    if (driver_.set) driver_.set(before_);
  }
  KeptContext(const KeptContext&) = delete;
  KeptContext& operator=(const KeptContext&) = delete;

 private:
  static const Driver& loaded();  // of this process, once

  const Driver driver_;
  void* before_ = nullptr;
};

}  // namespace tributary
