//! Commands of a user who is neither root nor the user of the gateway.

use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::gateway::{Gateway, program};

/// Commands run as `nobody`. This user may not read the file in the first round, and not enter its directory in the second.
#[test]
fn commands_say_that_this_user_may_not_read_the_config() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root starts commands as another user");
        return;
    }
    // The program under a path that everybody may use.
    let tmp = tempfile::tempdir().unwrap();
    fs::set_permissions(tmp.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = tmp.path().join("sluicegate");
    fs::copy(program().get_program(), &copy).unwrap();
    let run_as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args(arguments);
        let output = command.env_remove("SLUICEGATE_CONFIG").output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };

    let mut gateway = Gateway::start("[[route]]\nupstream = \"echo:\"\n");
    let file = gateway.config().display().to_string();
    for (directory, mode) in [(0o755, 0o640), (0o750, 0o644)] {
        fs::set_permissions(gateway.dir.path(), Permissions::from_mode(directory)).unwrap();
        fs::set_permissions(gateway.config(), Permissions::from_mode(mode)).unwrap();
        for command in ["healthcheck", "reload", "top", "ui"] {
            let (code, stderr) = run_as_nobody(&[command, "-c", &file]);
            let expected = format!("cannot read {file}: Permission denied");
            assert!(code != 0 && stderr.contains(&expected), "{command}: {code} {stderr}");
            assert!(stderr.contains("run this as root or as the user of the gateway"), "{command}: {stderr}");
            assert!(!stderr.contains("not exist") && !stderr.contains("no gateway"), "{command}: {stderr}");
        }
        assert_eq!(run_as_nobody(&["healthcheck", "-c", &file]).0, 1);
        let url = format!("http://{}/readyz", gateway.admin);
        assert_eq!(run_as_nobody(&["healthcheck", "--url", &url]).0, 0);
    }
    gateway.signal("TERM");
    assert_eq!(gateway.exit().code(), Some(0));
    let (code, stderr) = run_as_nobody(&["healthcheck", "-c", &file]);
    assert!(code == 1 && stderr.contains("no gateway that runs with it was found"), "{code} {stderr}");
}
