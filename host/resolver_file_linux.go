package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxResolvConf in bytes bounds what is read as a resolv.conf; real ones have a few
// hundred.
const maxResolvConf = 1 << 20

// errOtherFile: the record is about a mounted resolv.conf of another namespace.
var errOtherFile = errors.New("the resolv.conf here is not the one that was changed")

// fileKind says what is at the path of a resolv.conf; it is stored, so the values
// stay.
type fileKind string

const (
	kindNone fileKind = "none"
	kindFile fileKind = "file"
	kindLink fileKind = "link"
)

// confFile is what is found at a path.
type confFile struct {
	Kind    fileKind    `json:"kind"`
	Target  string      `json:"target,omitempty"`  // of a symbolic link, as it is written there
	Content []byte      `json:"content,omitempty"` // what reading the path gives, links followed
	Mode    fs.FileMode `json:"perm,omitempty"`
	UID     int         `json:"uid"`
	GID     int         `json:"gid"`
	Dev     uint64      `json:"dev"`
	Ino     uint64      `json:"ino"`
}

// savedFile is the record of a resolv.conf that we took over: what was there, and
// what we wrote.
type savedFile struct {
	confFile
	Path    string `json:"path"`
	Written []byte `json:"written"`

	// InPlace: the path is a mount point, so the file was overwritten and not
	// replaced.
	InPlace bool `json:"in_place"`

	// Backup is the former file or link itself under another name, for a
	// person to find. Putting it back needs no room on the disk. "" with InPlace:
	// the directory there belongs to others.
	Backup string `json:"backup,omitempty"`
}

// inspect reads what is at path.
func inspect(path string) (*confFile, error) {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &confFile{Kind: kindNone}, nil
	}
	if err != nil {
		return nil, err
	}
	c := &confFile{Kind: kindFile}
	if st.Mode()&fs.ModeSymlink != 0 {
		c.Kind = kindLink
		if c.Target, err = os.Readlink(path); err != nil {
			return nil, err
		}
		if st, err = os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return c, nil
		} else if err != nil {
			return nil, err
		}
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if c.Content, err = io.ReadAll(io.LimitReader(f, maxResolvConf+1)); err != nil {
		return nil, err
	}
	if len(c.Content) > maxResolvConf {
		return nil, fmt.Errorf("%s is larger than %d bytes: that is no resolv.conf", path, maxResolvConf)
	}
	c.Mode = st.Mode().Perm()
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		c.UID, c.GID = int(sys.Uid), int(sys.Gid)
		c.Dev, c.Ino = uint64(sys.Dev), sys.Ino
	}
	return c, nil
}

// canBeEdited reports whether what is there now is a file of which somebody may
// have edited what we wrote.
func (f *savedFile) canBeEdited(now *confFile) bool {
	if f.InPlace {
		return now.Dev == f.Dev && now.Ino == f.Ino
	}
	return now.Kind == kindFile
}

// isOurs reports whether what is there now is what we wrote, be it cut off.
func (f *savedFile) isOurs(now *confFile) bool {
	if !f.InPlace {
		return now.Kind == kindFile && bytes.Equal(now.Content, f.Written)
	}
	if !f.canBeEdited(now) {
		return false
	}
	for _, c := range [][]byte{f.Written, overlay(f.Written, f.Content), overlay(f.Content, f.Written)} {
		if bytes.Equal(now.Content, c) {
			return true
		}
	}
	return false
}

// wireFile takes /etc/resolv.conf over.
func (e *resolverEnv) wireFile(s, prior *savedResolver, record func() error) error {
	path := e.path(resolvConfPath)
	now, err := inspect(path)
	if err != nil {
		return err
	}
	t := s.takeover()
	if name, err := e.hostname(); err == nil {
		_, t.hostDomain, _ = strings.Cut(name, ".")
	}
	if prior != nil && prior.File.canBeEdited(now) && !prior.File.isOurs(now) {
		list := nameservers(now.Content)
		if len(list) > 0 && list[0] == s.Server || t.names(now.Content) && e.ofAnother(now.Content, t) {
			s.File = prior.File // edited by somebody, to good effect
			return nil
		}
	}
	if prior != nil && prior.File.isOurs(now) {
		t.keptAs = prior.File.Backup
		if bytes.Equal(now.Content, t.render(prior.File.Content)) {
			s.File = prior.File
			return nil
		}
		// Cut off, or written by a version that wrote something else.
		if err := prior.File.restore(); err != nil {
			return err
		}
		if now, err = inspect(path); err != nil {
			return err
		}
	}
	f := &savedFile{confFile: *now, Path: path}
	s.File = f
	if f.InPlace, err = e.mounted(); err != nil {
		return err
	}
	if !f.InPlace {
		f.Backup = backupOf(path, s.Interface)
	}
	orphan, err := e.adoptOrphan(f, t)
	if err != nil {
		return err
	}
	t.keptAs = f.Backup
	f.Written = t.render(f.Content)
	if err := record(); err != nil {
		return err
	}
	if f.InPlace {
		return f.writeInPlace(f.Written, now.Content)
	}
	if !orphan && f.Kind != kindNone {
		if err := f.backUp(); err != nil {
			return err
		}
	}
	mode, uid, gid := now.Mode, now.UID, now.GID
	if now.Kind != kindFile {
		mode, uid, gid = 0o644, -1, -1 // those of a link's target mean nothing here
	}
	err = replaceFile(path, f.Written, mode, uid, gid)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EROFS) {
		// A mount that the table does not show, or an /etc that is read-only
		// around a file that is not.
		if orphan {
			return err
		}
		_ = os.Remove(f.Backup)
		f.InPlace, f.Backup, t.keptAs = true, "", ""
		f.Written = t.render(f.Content)
		if err := record(); err != nil {
			return err
		}
		return f.writeInPlace(f.Written, now.Content)
	}
	return err
}

// ofAnother reports whether a file was written for another overlay that is up. That one sends us the questions for
// our names.
func (e *resolverEnv) ofAnother(text []byte, t takeover) bool {
	iface, ok := writtenFor(text)
	if !ok || iface == t.iface {
		return false
	}
	_, up, err := e.linkIndex(iface)
	return err == nil && up
}

// adoptOrphan finds what is beneath a file of which weft wrote some: of overlays that are gone, or of this one, whose record is lost. That
// of another one that is up is a former file like any. It reports whether the backup is in place already.
func (e *resolverEnv) adoptOrphan(f *savedFile, t takeover) (backedUp bool, err error) {
	remains, err := e.remaining(f.Content, t.iface)
	if err != nil {
		return false, err
	}
	found, backups, err := beneath(f.confFile, f.Path, f.InPlace, remains)
	if err != nil {
		return false, err
	}
	f.confFile = found
	if len(backups) == 0 {
		return false, nil
	}
	if last := backups[len(backups)-1]; last != f.Backup {
		if err := os.Rename(last, f.Backup); err != nil {
			return false, err
		}
	}
	return true, removeAll(slices.DeleteFunc(backups, func(p string) bool { return p == f.Backup })...)
}

// unwireFile puts /etc/resolv.conf back. A file that somebody rewrote stays; from one
// that was edited and still names our server our lines are taken.
func (e *resolverEnv) unwireFile(s *savedResolver) error {
	f, t := s.File, s.takeover()
	now, err := inspect(f.Path)
	if err != nil {
		return err
	}
	if f.InPlace && !f.canBeEdited(now) {
		return errOtherFile
	}
	former, backups, err := e.former(f, s.Interface, now.Content)
	if err != nil {
		return err
	}
	switch ours := f.isNearlyOurs(now); {
	case ours:
		if err := former.restore(); err != nil {
			return err
		}
	case f.canBeEdited(now) && t.names(now.Content):
		text := t.strip(now.Content, former.Content)
		if f.InPlace {
			err = f.writeInPlace(text, now.Content)
		} else {
			err = replaceFile(f.Path, text, now.Mode, now.UID, now.GID)
		}
		if err != nil {
			return err
		}
		if e.ofAnother(now.Content, t) {
			return f.leaveBeneath(s.Interface, now.Content)
		}
	}
	return removeAll(backups...)
}

// restore puts back what was there.
func (f *savedFile) restore() error {
	switch {
	case f.InPlace:
		return f.writeInPlace(f.Content, f.Written)
	case f.Kind == kindNone:
		if err := os.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return syncDir(filepath.Dir(f.Path))
	}
	if b, err := inspect(f.Backup); err == nil && b.Kind == f.Kind && b.Target == f.Target &&
		(f.Kind == kindLink || bytes.Equal(b.Content, f.Content)) {
		if err := os.Rename(f.Backup, f.Path); err != nil {
			return err
		}
		return syncDir(filepath.Dir(f.Path))
	}
	if f.Kind == kindLink {
		return replaceLink(f.Path, f.Target)
	}
	return replaceFile(f.Path, f.Content, f.Mode, f.UID, f.GID)
}

// backUp gives the former file or link a second name. A hard link keeps its dates,
// labels and attributes; where the file system has none, a copy must do.
func (f *savedFile) backUp() error {
	if err := os.Remove(f.Backup); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if os.Link(f.Path, f.Backup) == nil {
		return nil
	}
	if f.Kind == kindLink {
		return os.Symlink(f.Target, f.Backup)
	}
	return replaceFile(f.Backup, f.Content, f.Mode, f.UID, f.GID)
}

// replaceFile is WriteFileAtomic with an owner, and with errors a caller can tell
// apart.
func replaceFile(path string, data []byte, mode fs.FileMode, uid, gid int) error {
	temp, err := writeTemp(path, data, mode, func(f *os.File) error { return f.Chown(uid, gid) })
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return syncDir(filepath.Dir(path))
}

func replaceLink(path, target string) error {
	temp := filepath.Join(filepath.Dir(path), tempPrefix(filepath.Base(path))+"link")
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return syncDir(filepath.Dir(path))
}

// writeInPlace overwrites the file with one call and then shortens it, so that no
// reader and no crash ever meets an empty file. If it fails the old content is put
// back as far as that goes.
func (f *savedFile) writeInPlace(data, old []byte) error {
	file, err := os.OpenFile(f.Path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	write := func(data []byte) error {
		if _, err := file.WriteAt(data, 0); err != nil {
			return err
		}
		return file.Truncate(int64(len(data)))
	}
	if err := write(data); err != nil {
		return errors.Join(err, write(old))
	}
	if err := file.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// upstreams are the servers that the former file names. Where it was a link,
// somebody keeps the file behind it up to date, and that one is read.
func (f *savedFile) upstreams(e *resolverEnv, ours netip.Addr) []netip.Addr {
	text := f.Content
	if f.Kind == kindLink && !f.InPlace {
		if now, err := inspect(e.path(linkTarget(e.root, f.Target))); err == nil && len(now.Content) > 0 {
			text = now.Content
		}
	}
	without := []netip.Addr{ours}
	for _, l := range layers(text) { // another overlay's is asked for its own names alone, and is nobody once that is down
		without = append(without, l.server)
	}
	list := nameservers(text, without...)
	if onlyStub(list) {
		// The stub asks whom resolved knows, and with our file in the way
		// that could become us: ask those behind it.
		if now, err := inspect(e.path(resolvedUplinks)); err == nil {
			if behind := nameservers(now.Content, ours); len(behind) > 0 {
				return behind
			}
		}
	}
	if len(list) == 0 {
		// resolv.conf(5): without any, the name server of the machine itself.
		list = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	return list
}

// linkTarget is what a link at /etc/resolv.conf with this text leads to.
func linkTarget(root, target string) string {
	if !filepath.IsAbs(target) {
		return filepath.Join(filepath.Dir(resolvConfPath), target)
	}
	if rest, ok := strings.CutPrefix(target, root); ok {
		return filepath.Clean(rest)
	}
	return filepath.Clean(target)
}

// onlyStub reports whether a list of servers is systemd-resolved's stub and nothing
// else (127.0.0.53, or 127.0.0.54 since version 254).
func onlyStub(list []netip.Addr) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(a netip.Addr) bool {
		return a != netip.AddrFrom4([4]byte{127, 0, 0, 53}) && a != netip.AddrFrom4([4]byte{127, 0, 0, 54})
	})
}
