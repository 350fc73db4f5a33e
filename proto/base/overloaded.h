#pragma once

namespace sluice {

// Makes one visitor of a std::variant from several lambdas:
// std::visit(Overloaded{[](int) {}, [](const auto&) {}}, variant).
template <typename... Each>
struct Overloaded : Each... {
  using Each::operator()...;
};
template <typename... Each>
Overloaded(Each...) -> Overloaded<Each...>;

}  // namespace sluice
