//! Gauges of how many gateways share the store. `limiting::gateways` counts them and sets the gauges.

use prometheus::IntGauge;

#[derive(Clone, Debug)]
pub struct GatewayGauges {
    /// Number of gateways that currently report to the store; 0 until the first report.
    pub alive: IntGauge,
    /// Number of gateways that budgets are divided by while the store is unavailable.
    pub divisor: IntGauge,
}
