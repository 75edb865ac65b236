package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// overlaysDir holds a file for each overlay that is up, by interface, in a directory for each network namespace. The file is
// locked by the daemon for as long as that lives: without a lock it was left behind by one that was killed. Who looks at all of
// the files before it changes one locks the directory, which goes with the last of them.
const overlaysDir = "/run/weft"

// announceTries is how often the directory may go with another's last file while it is waited for.
const announceTries = 1000

// An Announcement is an overlay that others know of until it is closed.
type Announcement struct {
	dir  string
	mu   sync.Mutex
	file *os.File
	now  Overlay
}

// Announce makes an overlay known to the other daemons of this machine. It is refused with ErrOverlap when one of them has
// some of its addresses: of two routes to one address the machine would take either.
func Announce(o Overlay) (*Announcement, error) { return announceIn(namespaceDir(overlaysDir), o) }

// Overlays are the overlays of other daemons that are up on this machine.
func Overlays(except string) []Overlay { return overlaysIn(namespaceDir(overlaysDir), except) }

// Namesake is another overlay of this machine that has a domain, and had it before that of an interface did.
func Namesake(iface, domain string) (Overlay, bool) {
	return namesakeIn(namespaceDir(overlaysDir), iface, domain)
}

func namesakeIn(dir, iface, domain string) (Overlay, bool) {
	var own Overlay
	text, err := os.ReadFile(overlayPath(dir, iface))
	if err != nil || json.Unmarshal(text, &own) != nil || own.Domain != domain {
		own = Overlay{Interface: iface, Named: time.Now()} // it is about to have it
	}
	for _, o := range overlaysIn(dir, iface) {
		if o.Domain == domain && o.before(own) {
			return o, true
		}
	}
	return Overlay{}, false
}

// namespaceDir is the directory of this network namespace: overlays of another are as far away as another machine.
func namespaceDir(dir string) string {
	ns, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return dir
	}
	return filepath.Join(dir, strings.NewReplacer(":", "", "[", "-", "]", "").Replace(ns))
}

func announceIn(dir string, o Overlay) (a *Announcement, err error) {
	for range announceTries {
		if a, err = tryAnnounce(dir, o); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return a, err
}

func tryAnnounce(dir string, o Overlay) (*Announcement, error) {
	a := &Announcement{dir: dir}
	unlock, err := a.lockDir()
	if err != nil {
		return nil, err
	}
	defer unlock()
	a.file, err = os.OpenFile(overlayPath(dir, o.Interface), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("tell other networks of this machine: %w", err)
	}
	if err := unix.Flock(int(a.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		a.file.Close()
		return nil, fmt.Errorf("the interface %s is that of another weft process: give this one another with --tun", o.Interface)
	}
	if err := a.set(o); err != nil {
		a.drop()
		return nil, err
	}
	return a, nil
}

func overlayPath(dir, iface string) string { return filepath.Join(dir, iface+".json") }

func (a *Announcement) lockDir() (unlock func() error, err error) {
	f, err := openDir(a.dir)
	if err != nil {
		return nil, fmt.Errorf("tell other networks of this machine: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX) // held for as long as it takes to read some files
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil { // the directory may have gone while it was waited for, and be another one
		var locked, there fs.FileInfo
		if locked, err = f.Stat(); err == nil {
			if there, err = os.Stat(a.dir); err == nil && !os.SameFile(locked, there) {
				err = fs.ErrNotExist
			}
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("tell other networks of this machine: %w", err)
	}
	return f.Close, nil
}

// openDir opens a directory that it makes where it is missing. One that goes meanwhile is fs.ErrNotExist.
func openDir(dir string) (*os.File, error) {
	err := os.MkdirAll(dir, 0o755)
	if errors.Is(err, fs.ErrExist) { // it was there when it was to be made, and was not when it was looked at
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return os.Open(dir)
}

// set writes the file, unless another overlay is in the way. The directory is locked.
func (a *Announcement) set(o Overlay) error {
	for _, other := range overlaysIn(a.dir, o.Interface) {
		if shared, some := o.overlaps(other); some {
			return fmt.Errorf("this network %w: that on %s has %v, too. Give one of the two other addresses on its server (weft server --range), "+
				"or leave one with `weft down`", ErrOverlap, other.Interface, shared)
		}
	}
	if o.Named = a.now.Named; o.Domain != a.now.Domain {
		o.Named = time.Now()
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := a.file.WriteAt(text, 0); err != nil {
		return fmt.Errorf("tell other networks of this machine: %w", err)
	}
	a.now = o
	return a.file.Truncate(int64(len(text)))
}

// Update makes known what has changed of the overlay. What is refused is not: the others know what they knew.
func (a *Announcement) Update(o Overlay) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file == nil {
		return errors.New("tell other networks of this machine: this one is down")
	}
	unlock, err := a.lockDir()
	if err != nil {
		return err
	}
	defer unlock()
	return a.set(o)
}

// Close has the others forget the overlay.
func (a *Announcement) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file == nil {
		return
	}
	if unlock, err := a.lockDir(); err == nil {
		defer unlock()
	}
	a.drop()
}

// drop takes the file away, what killed daemons left, and the directory where that was all.
func (a *Announcement) drop() {
	_ = os.Remove(a.file.Name()) // while it is locked: nobody else's is at that path
	a.file.Close()
	a.file = nil
	files, _ := filepath.Glob(filepath.Join(a.dir, "*.json"))
	for _, path := range files {
		if _, err := readHeld(path); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(path)
		}
	}
	_ = os.Remove(a.dir) // which fails while another's file is in it
}

// overlaysIn reads what is announced. What nobody holds, or is being written, is left out.
func overlaysIn(dir, except string) (out []Overlay) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil
	}
	for _, path := range files {
		if filepath.Base(path) == except+".json" {
			continue
		}
		if o, err := readHeld(path); err == nil {
			out = append(out, o)
		}
	}
	return out
}

// readHeld reads an announcement that a process holds.
func readHeld(path string) (o Overlay, err error) {
	f, err := os.Open(path)
	if err != nil {
		return o, err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return o, fs.ErrNotExist // whoever held it is gone
	}
	err = json.NewDecoder(f).Decode(&o)
	return o, err
}
