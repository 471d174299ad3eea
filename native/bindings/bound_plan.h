// A plan with the Python arrays that it reads.
#pragma once
#include <memory>
#include <vector>

#include "../runtime/plan.h"
#include "bindings.h"

namespace gm {

struct BoundPlan {
  std::unique_ptr<Plan> plan;  // null once released
  std::vector<Bytes> weights;

  Plan& get() const {
    if (!plan) throw std::invalid_argument("the plan was released");
    return *plan;
  }
};

}  // namespace gm
