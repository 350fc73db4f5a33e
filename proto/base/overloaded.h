// Combines several lambdas into one visitor of a std::variant:
// std::visit(Overloaded{[](int) {}, [](const auto&) {}}, variant).
#pragma once

namespace sluice {

template <typename... Each>
struct Overloaded : Each... {
  using Each::operator()...;
};
template <typename... Each>
Overloaded(Each...) -> Overloaded<Each...>;

}  // namespace sluice
