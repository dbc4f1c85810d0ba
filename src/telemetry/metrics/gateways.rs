//! Gauges of how many gateways share the store. `limiting::gateways` counts them and sets the gauges.

use prometheus::IntGauge;

use crate::telemetry::metrics::families::Families;

#[derive(Clone, Debug)]
pub struct GatewayGauges {
    /// Number of gateways that currently report to the store; 0 until the first report.
    pub alive: IntGauge,
    /// Number of gateways that budgets are divided by while the store is unavailable.
    pub divisor: IntGauge,
}

impl GatewayGauges {
    pub fn new(families: &Families) -> prometheus::Result<GatewayGauges> {
        Ok(GatewayGauges {
            alive: families
                .gauge("store_gateways", "Number of gateways that share the store; 0 if none has reported.")?,
            divisor: families
                .gauge("store_local_divisor", "Number by which limits are divided while the store is unavailable.")?,
        })
    }
}
