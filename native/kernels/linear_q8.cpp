// The 8-bit formats.
#include "linear_quantized.h"
#include "tier.h"

namespace gm::GM_TIER {

void linear_q8_g32(const LinearArgs& args) { linear<8, 32, false>(args); }
void linear_q8_g32_min(const LinearArgs& args) { linear<8, 32, true>(args); }
void linear_q8_g16(const LinearArgs& args) { linear<8, 16, false>(args); }

}  // namespace gm::GM_TIER
