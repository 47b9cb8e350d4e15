//! Who asks, and what of everything it may see and change. The one place that says so: whoever looks for a lease or a
//! job asks [`Caller::sees`].
use crate::id::Name;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whose leases and jobs it may see and change.
    pub tenant: Name,
    /// May see and change everyone's.
    pub admin: bool,
    /// Sees and changes this job and its leases only; none: all that is the tenant's.
    pub job: Option<Name>,
}

impl Caller {
    /// One of a tenant.
    pub const fn user(tenant: Name) -> Self {
        Self {
            tenant,
            admin: false,
            job: None,
        }
    }

    /// One who may see and change everyone's.
    pub const fn admin(tenant: Name) -> Self {
        Self {
            tenant,
            admin: true,
            job: None,
        }
    }

    /// The same for one job only. Nobody who is limited to a job is an admin.
    #[must_use]
    pub fn within(self, job: Name) -> Self {
        Self {
            admin: false,
            job: Some(job),
            ..self
        }
    }

    /// Whether it may see and change what belongs to a tenant, and there to a job (none: to no job).
    pub fn sees(&self, tenant: &Name, job: Option<&Name>) -> bool {
        self.is_of(tenant) && self.may_ask_for(job)
    }

    /// Whether it is of this tenant, or of all.
    pub fn is_of(&self, tenant: &Name) -> bool {
        self.admin || self.tenant == *tenant
    }

    /// Whether it may ask for something of its tenant's for this job (none: for no job).
    pub fn may_ask_for(&self, job: Option<&Name>) -> bool {
        self.job.as_ref().is_none_or(|own| job == Some(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sees_what() {
        let name = |s: &str| Name::new(s).unwrap();
        let (alice, bob, pick, place) = (name("alice"), name("bob"), name("pick"), name("place"));
        let user = Caller::user(alice.clone());
        let admin = Caller::admin(alice.clone());
        let limited = Caller::admin(alice.clone()).within(pick.clone());
        for (caller, tenant, job, expect) in [
            (&user, &alice, None, true),
            (&user, &alice, Some(&pick), true),
            (&user, &bob, Some(&pick), false),
            (&admin, &bob, None, true),
            (&limited, &alice, Some(&pick), true),
            (&limited, &alice, Some(&place), false),
            (&limited, &alice, None, false),
            (&limited, &bob, Some(&pick), false),
        ] {
            assert_eq!(
                caller.sees(tenant, job),
                expect,
                "{caller:?}: {tenant}, {job:?}"
            );
        }
    }
}
