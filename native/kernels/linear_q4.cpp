// The 4-bit formats.
#include "linear_quantized.h"
#include "tier.h"

namespace gm::GM_TIER {

void linear_q4_g32(const LinearArgs& args) { linear<4, 32, false>(args); }
void linear_q4_g32_min(const LinearArgs& args) { linear<4, 32, true>(args); }
void linear_q4_g16(const LinearArgs& args) { linear<4, 16, false>(args); }
void linear_q4_g16_min(const LinearArgs& args) { linear<4, 16, true>(args); }

}  // namespace gm::GM_TIER
