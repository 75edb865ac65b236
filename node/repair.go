package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"weft/host"
)

// Repair puts back what a daemon that was killed has left changed on this machine: the system's resolver, routes and rules
// by the interface, a portal. It returns in words what that was; it fails while a daemon has the state directory.
func Repair(stateDir, tun string) (left []string, err error) {
	if _, err := os.Stat(filepath.Join(stateDir, identityFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // nobody ever ran here
	} else if err != nil {
		return nil, fmt.Errorf("the state directory %s cannot be read: %w", stateDir, err)
	}
	unlock, err := host.LockFile(filepath.Join(stateDir, lockFile))
	if err != nil {
		return nil, err
	}
	defer unlock()
	left, err = host.Left(tun, stateDir)
	return left, errors.Join(err, host.ClosePortal(tun, stateDir), host.RepairResolver(stateDir), host.ClearOverlayRoutes(tun),
		host.StopForwarding(tun), host.StopRouter(tun))
}
