// Marks for assistive technology that the theme leaves out.
addEventListener("load", () => {
  for (const caption of document.querySelectorAll("p.caption[role=heading]")) caption.setAttribute("aria-level", "2");
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  for (const box of document.querySelectorAll("pre, .table-wrapper, .formula")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; // scrolls with the keyboard
  }
});
