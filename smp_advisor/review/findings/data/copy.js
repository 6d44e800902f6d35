(function (root) {
  // Buttons are made here, not written in the page: where scripts are not run there is nothing that does nothing.
  if (!root) return;
  var status = root.querySelector('.smp-hidden[role="status"]');
  function say(text) {
    status.textContent = '';
    setTimeout(function () { status.textContent = text; }, 60);
  }
  function byCommand(text) {
    var area = document.createElement('textarea');
    area.value = text;
    area.setAttribute('aria-hidden', 'true');
    area.style.cssText = 'position:fixed;top:0;left:0;opacity:0';
    root.appendChild(area);
    area.select();
    var done = false;
    try { done = document.execCommand('copy'); } catch (error) { done = false; }
    area.remove();
    return done;
  }
  function copy(text) {
    if (navigator.clipboard && window.isSecureContext) {
      return navigator.clipboard.writeText(text).then(
        function () { return true; },
        function () { return byCommand(text); }
      );
    }
    return Promise.resolve(byCommand(text));
  }
  function select(node) {
    var range = document.createRange();
    range.selectNodeContents(node);
    var selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }
  root.querySelectorAll('[data-smp-copy]').forEach(function (slot) {
    var source = slot.parentNode.querySelector('[data-smp-text="' + slot.dataset.smpCopy + '"]');
    if (!source || slot.firstChild) return;
    var button = document.createElement('button');
    button.type = 'button';
    button.textContent = 'Copy ' + slot.dataset.smpCopy;
    button.setAttribute('aria-label', 'Copy ' + slot.dataset.smpCopy + ' of ' + slot.dataset.smpOf);
    // JupyterLab's command mode would take Enter and Space.
    button.dataset.lmSuppressShortcuts = 'true';
    button.style.cssText = 'font:inherit;font-size:12px;padding:1px 8px;margin:0 6px 4px 0;cursor:pointer;' +
      'color:inherit;background:transparent;border:1px solid currentColor;border-radius:3px';
    button.addEventListener('click', function () {
      copy(source.textContent).then(function (done) {
        button.focus();
        if (!done) select(source);
        say(done ? 'Copied the ' + slot.dataset.smpCopy + ' of ' + slot.dataset.smpOf + '.'
          : 'The clipboard is not available. The text is selected: press Ctrl+C or Cmd+C.');
      });
    });
    slot.appendChild(button);
    var place = /^(.*):(\d+):(\d+)$/.exec(source.textContent);
    // The lab extension marks pages in which it can open files.
    if (slot.dataset.smpCopy !== 'place' || !place || document.body.dataset.smpAdvisor === undefined) return;
    var open = button.cloneNode();
    open.textContent = 'Open';
    open.setAttribute('aria-label', 'Open ' + source.textContent);
    open.addEventListener('click', function () {
      var detail = { path: place[1], line: Number(place[2]), column: Number(place[3]) };
      var request = { bubbles: true, composed: true, cancelable: true, detail: detail };
      if (open.dispatchEvent(new CustomEvent('smp-advisor:open-place', request))) {
        say('This file is outside of the folder of JupyterLab.');
      }
    });
    slot.appendChild(open);
  });
  root.querySelectorAll('[data-smp-insert]').forEach(function (slot) {
    var source = root.querySelector('[data-smp-text="call"]');
    if (!source || slot.firstChild) return;
    var button = document.createElement('button');
    button.type = 'button';
    button.className = 'smp-primary';
    button.textContent = slot.dataset.smpInsert;
    button.dataset.lmSuppressShortcuts = 'true';
    button.addEventListener('click', function () {
      var cell = 'import smp_advisor as smpa\n\n' + source.textContent + '\nadvice';
      var detail = { sources: [cell], what: 'advise', plan: '', mode: 'update', run: true };
      var request = { bubbles: true, composed: true, cancelable: true, detail: detail };
      if (!button.dispatchEvent(new CustomEvent('smp-advisor:insert-cell', request))) return say('Inserted a cell below, and ran it.');
      copy(cell).then(function (done) {
        if (!done) select(source);
        say(done ? 'Copied the cell; paste it below.' : 'The code is selected: press Ctrl+C or Cmd+C.');
      });
    });
    slot.appendChild(button);
  });
  root.querySelectorAll('summary').forEach(function (summary) {
    summary.dataset.lmSuppressShortcuts = 'true';
  });
})(document.getElementById('IDENTITY'));
