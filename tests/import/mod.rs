//! Tests `sluicegate import`: the configs that it writes for nginx and ingress-nginx, the errors for hostile files, and
//! whether nginx and the imported config decide alike.

mod differential;
mod hostile;
mod output;
mod sites;
