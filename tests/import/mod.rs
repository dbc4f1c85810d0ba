//! Tests `sluicegate import`: the configs that it writes for nginx, ingress-nginx and ratelimit, the errors for hostile
//! files, and whether nginx and the imported config decide alike.

mod comments;
mod defaults;
mod delays;
mod descriptors;
mod differential;
mod expressions;
mod files;
mod hostile;
mod ingress;
mod locations;
mod output;
mod sites;
mod tables;
