// On other architectures there is no AVX tier.
#include "kernels.h"

namespace gm {

const Kernels* kernels_avx2() { return nullptr; }
const Kernels* kernels_avx512() { return nullptr; }

}  // namespace gm
