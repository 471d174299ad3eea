#include "bindings.h"

NB_MODULE(_native, m) {
  gm::bind_runtime(m);
  gm::bind_pack(m);
  gm::bind_plan(m);
}
