package guest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// own are the modules that the guest needs before it has its files.
var own = []string{"virtio_pci", "virtio_net", "virtio_console", "9pnet_virtio", "9p"}

// A kernel is one that scripts/install-deps unpacked.
type kernel struct {
	image   string
	modules map[string]string // files, by the names that modules have in each other's dependencies
}

// findKernel looks for the only kernel in a directory.
func findKernel(dir string) (*kernel, error) {
	images, _ := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if len(images) != 1 {
		return nil, fmt.Errorf("%s has %d kernels of a guest, not one: run scripts/install-deps guest", dir, len(images))
	}
	k := &kernel{image: images[0], modules: map[string]string{}}
	err := filepath.WalkDir(filepath.Join(dir, "lib/modules"), func(path string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			k.modules[underscored(name)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the guest's kernel: %w: run scripts/install-deps guest", err)
	}
	return k, nil
}

// underscored is how modules are called where files may have dashes (modprobe(8)).
func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }

// order lists the files of modules, each behind those that it depends on.
func (k *kernel) order(names []string) (files []string, err error) {
	var add func(name string, depth int) error
	add = func(name string, depth int) error {
		file, ok := k.modules[underscored(name)]
		switch {
		case !ok:
			return fmt.Errorf("the guest's kernel has no module %s", name)
		case slices.Contains(files, file):
			return nil
		case depth > 20:
			return fmt.Errorf("the module %s depends on itself", name)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, d := range dependencies(b) {
			if err := add(d, depth+1); err != nil {
				return err
			}
		}
		files = append(files, file)
		return nil
	}
	for _, name := range names {
		if err := add(name, 0); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// dependencies are those that the section .modinfo of a module names, whose entries end in zeros.
func dependencies(module []byte) []string {
	_, rest, ok := bytes.Cut(module, []byte("\x00depends="))
	if !ok {
		return nil
	}
	list, _, _ := bytes.Cut(rest, []byte{0})
	return strings.FieldsFunc(string(list), func(r rune) bool { return r == ',' })
}

// initScript is the guest's first program. The order of modules is that of their names. The machine's own /run, with its sockets
// and pids, is not the guest's business.
const initScript = `#!/bin/busybox sh
b=/bin/busybox
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/run
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for m in /modules/*; do $b insmod $m || $b echo "module $m failed"; done
if $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro root /root; then
	for d in proc sys dev; do $b mount -o move /$d /root/$d; done
	$b mount -t tmpfs run /root/run
	$b ln -s /proc/self/fd /root/dev/fd
	for n in 0:stdin 1:stdout 2:stderr; do $b ln -s fd/${n%%:*} /root/dev/${n#*:}; done
	$b chroot /root %s
fi
$b poweroff -f
`

// writeImage writes an initial RAM disk.
func (k *kernel) writeImage(path string, modules, agent []string) (err error) {
	files, err := k.order(append(slices.Clone(own), modules...))
	if err != nil {
		return err
	}
	busybox, err := findBusybox()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return err
	}
	a := &archive{w: z}
	for _, dir := range []string{"bin", "dev", "modules", "proc", "root", "sys"} {
		a.add(dir, 0o040755, nil)
	}
	a.addFile("bin/busybox", busybox)
	for i, file := range files {
		a.addFile(fmt.Sprintf("modules/%02d-%s", i, filepath.Base(file)), file)
	}
	a.add("init", 0o100755, fmt.Appendf(nil, initScript, quoted(agent)))
	a.add("TRAILER!!!", 0, nil)
	return cmp.Or(a.err, z.Close())
}

// findBusybox finds one that needs no other files. Debian's package busybox has one that does.
func findBusybox() (string, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return "", errors.New("the program busybox is missing: run scripts/install-deps guest")
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return "", fmt.Errorf("%s needs libraries, which the guest has not: install the package busybox-static in its place", path)
	}
	return path, nil
}

// quoted is a command for a shell that changes nothing in it.
func quoted(args []string) string {
	var list []string
	for _, a := range args {
		list = append(list, "'"+strings.ReplaceAll(a, "'", `'\''`)+"'")
	}
	return strings.Join(list, " ")
}

// An archive is a cpio archive in the format that kernels read (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w     io.Writer
	inode int
	err   error
}

func (a *archive) addFile(name, path string) {
	b, err := os.ReadFile(path)
	a.err = cmp.Or(a.err, err)
	a.add(name, 0o100755, b)
}

// "070701", then in eight hexadecimal digits each: inode, mode, owner, group, links, time, size, device (2), its own
// device (2), length of the name with its zero, checksum; the name and the content each padded to a multiple of four
func (a *archive) add(name string, mode int, content []byte) {
	a.inode++
	head := fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name)
	for _, b := range [][]byte{padded(head), padded(content)} {
		_, err := a.w.Write(b)
		a.err = cmp.Or(a.err, err)
	}
}

func padded(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }
