package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"weft/host"
)

// Repair puts back what a daemon that was killed has left changed on this machine: the system's resolver, and routes and rules
// by the interface. Without anything left it reports false; it fails while a daemon has the state directory.
func Repair(stateDir, tun string) (left bool, err error) {
	if _, err := os.Stat(filepath.Join(stateDir, identityFile)); errors.Is(err, fs.ErrNotExist) {
		return false, nil // nobody ever ran here
	} else if err != nil {
		return false, fmt.Errorf("the state directory %s cannot be read: %w", stateDir, err)
	}
	unlock, err := host.LockFile(filepath.Join(stateDir, lockFile))
	if err != nil {
		return false, err
	}
	defer unlock()
	left, err = host.ResolverLeft(stateDir)
	return left, errors.Join(err, host.RepairResolver(stateDir), host.ClearOverlayRoutes(tun), host.StopForwarding(tun), host.StopRouter(tun))
}
