//! temporary
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    x.exp()
}
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    x.tanh()
}
pub fn vectorize<R>(f: impl FnOnce() -> R) -> R {
    f()
}
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
pub fn sum(a: &[f32]) -> f32 {
    a.iter().sum()
}
