package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
)

// Available says in one sentence why no lab can be made here, or nil. It tries for real (makes a
// namespace, loads a NAT rule in it, removes it), once per process.
func Available() error { return available() }

var available = sync.OnceValue(func() error {
	if runtime.GOOS != "linux" {
		return errors.New("network namespaces exist on Linux only")
	}
	for program, pkg := range map[string]string{"ip": "iproute2", "nft": "nftables", "tc": "iproute2"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("the program %s is missing (Debian package %s): run scripts/install-deps", program, pkg)
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root: run this again as root")
	}
	if err := mayMakeNamespaces(); err != nil {
		return fmt.Errorf("this machine does not permit network namespaces (%w): it needs CAP_SYS_ADMIN, which containers usually withhold", err)
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		return err
	}
	name := labID{"wefttry", os.Getpid(), start, 0}.String() + "-try"
	err = errors.Join(tool("", "ip", "netns", "add", name), Sweep("wefttry"))
	if err != nil {
		os.Remove(filepath.Join(runDir, name))
		return fmt.Errorf("network namespaces cannot be named here: %w", err)
	}
	defer removeNamespaces([]string{name})
	if err := tool("", "ip", "netns", "exec", name, "nft", "--version"); err != nil {
		return fmt.Errorf("programs cannot be run in network namespaces here: %w", err)
	}
	if err := loadRules(name, ruleset(FullCone, nth(insidePrefix4, 2))+cut(cutAll)+damage(1)); err != nil {
		return fmt.Errorf("nftables with NAT does not work in this kernel: %w", err)
	}
	return nil
})
