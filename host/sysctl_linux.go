package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sysctls is where the kernel's settings are files.
const sysctls = "/proc/sys/"

// A setting is a value of the kernel's, by its path below /proc/sys.
type setting struct {
	Path string `json:"path"`
	Set  string `json:"set"`
}

// settingPath is the path of a setting of the kernel, below /proc/sys.
func settingPath(parts ...string) string { return strings.Join(parts, "/") }

// readSetting is a value, "" of what there is not.
func readSetting(path string) string {
	b, _ := os.ReadFile(filepath.Join(sysctls, path))
	return strings.TrimSpace(string(b))
}

// set sets a value. What there is not is fs.ErrNotExist.
func set(s setting) error {
	err := os.WriteFile(filepath.Join(sysctls, s.Path), []byte(s.Set), 0)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("set %s=%s: %w (set it by hand, before weft is started)", strings.ReplaceAll(s.Path, "/", "."), s.Set, err)
}

// writeSetting sets a value. What has gone meanwhile, with its interface, is set.
func writeSetting(s setting) error {
	if err := set(s); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// filtersStrictly tells whether an interface whose rp_filter is at the path drops what comes by another way than answers would go (RFC
// 3704). The stricter of its own value and that for all counts, and 2 is not stricter than 1 but replaces it (ip-sysctl).
func filtersStrictly(path string) bool {
	own, all := readSetting(path), readSetting("net/ipv4/conf/all/rp_filter")
	return own != "2" && all != "2" && (own == "1" || all == "1")
}
